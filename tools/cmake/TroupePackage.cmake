# What `cmake --install` adds to the targets' own rules, so that find_package(troupe) gives another project troupe::runtime and
# troupe_add_program.
include(CMakePackageConfigHelpers)

set(TROUPE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)
set(TROUPE_SCHEMA_DIR ${CMAKE_INSTALL_DATADIR}/troupe)
set(TROUPE_CUDART_DIR ${CMAKE_INSTALL_LIBDIR}/troupe)

# A CAF that tools/setup has built goes along, to a place where nobody else finds it: Troupe's libraries need the one that they were
# compiled with, and Debian 12's is too old. CAF that the system provides stays where it is.
set(TROUPE_CAF_DIR "")
get_target_property(caf_kind CAF::core TYPE)
if(caf_kind STREQUAL "STATIC_LIBRARY" AND NOT CAF_DIR MATCHES "^/usr/")
  set(TROUPE_CAF_DIR ${CMAKE_INSTALL_LIBDIR}/troupe/caf)
  cmake_path(GET CAF_DIR PARENT_PATH caf_prefix)
  cmake_path(GET caf_prefix PARENT_PATH caf_prefix)
  cmake_path(GET caf_prefix PARENT_PATH caf_prefix)
  install(DIRECTORY ${caf_prefix}/include ${caf_prefix}/lib DESTINATION ${TROUPE_CAF_DIR})
endif()
configure_package_config_file(tools/cmake/troupeConfig.cmake.in ${PROJECT_BINARY_DIR}/package/troupeConfig.cmake
  INSTALL_DESTINATION ${TROUPE_PACKAGE_DIR}
  PATH_VARS TROUPE_SCHEMA_DIR TROUPE_CUDART_DIR TROUPE_CAF_DIR)
if(TROUPE_CUDA_FOUND)
  # Those who link the libraries need it, and no more of the toolkit. NVIDIA's licence allows to pass it on.
  install(FILES $<TARGET_FILE:CUDA::cudart_static> DESTINATION ${TROUPE_CUDART_DIR})
endif()
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/troupeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT troupeTargets NAMESPACE troupe:: DESTINATION ${TROUPE_PACKAGE_DIR})
if(TROUPE_LIBTORCH_FOUND)
  install(EXPORT troupeLibtorchTargets NAMESPACE troupe:: DESTINATION ${TROUPE_PACKAGE_DIR} COMPONENT libtroupe-libtorch-dev)
endif()
install(FILES
    ${PROJECT_BINARY_DIR}/package/troupeConfig.cmake
    ${PROJECT_BINARY_DIR}/package/troupeConfigVersion.cmake
    ${PROJECT_SOURCE_DIR}/tools/cmake/TroupeProgram.cmake
    ${PROJECT_SOURCE_DIR}/tools/cmake/TroupeTorch.cmake
  DESTINATION ${TROUPE_PACKAGE_DIR})

# For those who build without CMake: all libraries but the LibTorch trainer, each before those that it uses.
get_property(installed GLOBAL PROPERTY TROUPE_INSTALLED_LIBRARIES)
list(REVERSE installed)
list(TRANSFORM installed PREPEND "-l")
list(JOIN installed " " TROUPE_PC_LIBRARIES)
if(TROUPE_CAF_DIR)
  set(TROUPE_PC_CAF "\${prefix}/${TROUPE_CAF_DIR}")
else()
  get_target_property(TROUPE_PC_CAF CAF::core INTERFACE_INCLUDE_DIRECTORIES)
  list(GET TROUPE_PC_CAF 0 TROUPE_PC_CAF)
  cmake_path(GET TROUPE_PC_CAF PARENT_PATH TROUPE_PC_CAF)
endif()
if(TROUPE_CUDA_FOUND)
  set(TROUPE_PC_CUDART "\${libdir}/troupe/libcudart_static.a -lrt")
endif()
# Where the file is found tells the prefix: an installed tree may be moved.
file(RELATIVE_PATH TROUPE_PC_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
configure_file(tools/cmake/troupe.pc.in ${PROJECT_BINARY_DIR}/package/troupe.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/package/troupe.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# Documents and examples, side by side as in the sources, so that their links lead somewhere. The examples build by themselves.
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT troupe-doc)
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT troupe-doc)
install(DIRECTORY apps/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}/apps COMPONENT troupe-doc
  FILES_MATCHING PATTERN "*.cpp" PATTERN "*.hpp")
install(FILES tools/deploy/README.md tools/deploy/caf-node.service tools/deploy/caf-node.default
  DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools/deploy COMPONENT troupe-doc)
install(PROGRAMS tools/deploy/ssh-nodes tools/deploy/slurm.sbatch DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools/deploy COMPONENT troupe-doc)
install(PROGRAMS tools/trackers/troupe-mlflow DESTINATION ${CMAKE_INSTALL_DOCDIR}/tools/trackers COMPONENT troupe-doc)
install(FILES tools/cmake/examples.cmake DESTINATION ${CMAKE_INSTALL_DOCDIR}/apps/examples RENAME CMakeLists.txt COMPONENT troupe-doc)
