# Fuzz targets. libFuzzer comes with clang, whatever compiles the rest: what is fuzzed is compiled once more by it, and so has to be
# free of CAF.
include_guard()
find_program(TROUPE_CLANG NAMES clang++ clang++-19 clang++-16 clang++-14)
mark_as_advanced(TROUPE_CLANG)
if(TROUPE_CLANG AND NOT TROUPE_SANITIZERS AND NOT DEFINED TROUPE_HAS_LIBFUZZER)
  set(probe ${PROJECT_BINARY_DIR}/CMakeFiles/fuzz_probe)
  file(WRITE ${probe}.cpp "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n")
  execute_process(COMMAND ${TROUPE_CLANG} -fsanitize=fuzzer,address,undefined ${probe}.cpp -o ${probe}
    RESULT_VARIABLE failed OUTPUT_QUIET ERROR_QUIET)
  if(failed EQUAL 0)
    set(TROUPE_HAS_LIBFUZZER ON CACHE INTERNAL "Whether clang++ has libFuzzer")
  endif()
endif()

# troupe_add_fuzzer(name SOURCES <absolute paths> [INCLUDES <directories>] [LIBRARIES <libraries>] [DEPENDS <headers and targets>])
# builds tests/bin/<name>; sets <name>_path in the caller to it, or to nothing where there is no libFuzzer.
function(troupe_add_fuzzer name)
  cmake_parse_arguments(arg "" "" "SOURCES;INCLUDES;LIBRARIES;DEPENDS" ${ARGN})
  if(NOT TROUPE_HAS_LIBFUZZER OR TROUPE_SANITIZERS)
    set(${name}_path "" PARENT_SCOPE)
    return()
  endif()
  set(fuzzer ${CMAKE_BINARY_DIR}/tests/bin/${name})
  list(TRANSFORM arg_INCLUDES PREPEND -I)
  list(TRANSFORM arg_LIBRARIES PREPEND -l)
  add_custom_command(OUTPUT ${fuzzer}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/tests/bin
    COMMAND ${TROUPE_CLANG} -std=c++20 -O1 -g -w -fno-omit-frame-pointer -fsanitize=fuzzer,address,undefined
      -fno-sanitize-recover=undefined ${arg_INCLUDES} ${arg_SOURCES} ${arg_LIBRARIES} -o ${fuzzer}
    DEPENDS ${arg_SOURCES} ${arg_DEPENDS}
    COMMENT "Building the fuzzer ${name}" VERBATIM)
  add_custom_target(${name} ALL DEPENDS ${fuzzer})
  set(${name}_path ${fuzzer} PARENT_SCOPE)
endfunction()

# troupe_add_fuzz_run(test fuzzer corpus [options of libFuzzer...]): a short run, and a long form of it. `fuzzer` is its path, or nothing
# where there is none: then the test says that it is skipped.
function(troupe_add_fuzz_run test fuzzer corpus)
  set(run ${PROJECT_SOURCE_DIR}/tests/support/run_fuzzer)
  add_test(NAME ${test} COMMAND ${run} "${fuzzer}" ${corpus} ${ARGN})
  set_tests_properties(${test} PROPERTIES LABELS unit SKIP_RETURN_CODE 77)
  if(fuzzer)
    troupe_add_long_form(${test} COMMAND ${run} ${fuzzer} ${corpus} ${ARGN})
  endif()
endfunction()
