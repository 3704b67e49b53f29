# Finds LibTorch: that of TROUPE_TORCH, a directory with include/ and lib/ as in the Python package "torch" and in LibTorch's own archives,
# or else what find_package(Torch) finds. Sets Torch_FOUND, and defines the targets torch and torch_library.
#
# A directory is used as it is, without its package file for CMake: that of a package with CUDA wants the whole CUDA toolkit. Its part for GPUs is
# linked where its libraries are complete.
if(NOT TROUPE_TORCH)
  find_package(Torch QUIET CONFIG)
  return()
endif()
set(Torch_FOUND FALSE)
foreach(file include/ATen/ATen.h include/torch/csrc/api/include/torch/torch.h lib/libtorch_cpu.so lib/libc10.so)
  if(NOT EXISTS "${TROUPE_TORCH}/${file}")
    message(FATAL_ERROR "TROUPE_TORCH is ${TROUPE_TORCH}, which has no ${file}: name the directory of LibTorch, such as .../site-packages/torch; tools/setup --torch wheel fetches one")
  endif()
endforeach()
file(STRINGS "${TROUPE_TORCH}/share/cmake/Torch/TorchConfig.cmake" troupe_torch_abi REGEX "_GLIBCXX_USE_CXX11_ABI=0")
if(troupe_torch_abi)
  message(FATAL_ERROR "${TROUPE_TORCH} is built for the old ABI of the C++ library: use LibTorch 2.6 or later")
endif()
if(NOT TARGET torch)
  add_library(torch INTERFACE IMPORTED)
  add_library(torch_library INTERFACE IMPORTED)
  # LibTorch brings a version of fmt of its own, of which Troupe's code must not take the headers.
  find_path(TROUPE_FMT_DIR fmt/format.h REQUIRED)
  file(MAKE_DIRECTORY "${CMAKE_BINARY_DIR}/fmt_before_torch")
  file(CREATE_LINK "${TROUPE_FMT_DIR}/fmt" "${CMAKE_BINARY_DIR}/fmt_before_torch/fmt" SYMBOLIC)
  set(troupe_torch_includes "${CMAKE_BINARY_DIR}/fmt_before_torch" "${TROUPE_TORCH}/include" "${TROUPE_TORCH}/include/torch/csrc/api/include")
  # LibTorch links its GPU part with names that nothing refers to.
  set(troupe_torch_libraries "${TROUPE_TORCH}/lib/libtorch_cpu.so" "${TROUPE_TORCH}/lib/libc10.so")
  file(GLOB troupe_torch_cublas "${TROUPE_TORCH}/../nvidia/*/lib/libcublas.so*")
  if(EXISTS "${TROUPE_TORCH}/lib/libtorch_cuda.so" AND troupe_torch_cublas)
    list(APPEND troupe_torch_libraries "-Wl,--no-as-needed" "${TROUPE_TORCH}/lib/libtorch.so" "${TROUPE_TORCH}/lib/libtorch_cuda.so"
      "${TROUPE_TORCH}/lib/libc10_cuda.so" "-Wl,--as-needed")
  endif()
  set_target_properties(torch PROPERTIES
    INTERFACE_INCLUDE_DIRECTORIES "${troupe_torch_includes}"
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${troupe_torch_includes}"
    # Its own libraries are found by their paths inside the package.
    INTERFACE_LINK_OPTIONS "-Wl,--allow-shlib-undefined;-Wl,-rpath,${TROUPE_TORCH}/lib"
    INTERFACE_LINK_LIBRARIES "${troupe_torch_libraries}")
endif()
set(Torch_FOUND TRUE)
