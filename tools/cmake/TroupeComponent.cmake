# One call per library folder: the headers become a file set whose base is `include` (the include path, the install and the check
# that every public header compiles alone), the sources are listed, the links are named. A folder that is not linked has no
# include path, so an upward include fails to compile. EXPORT names the export set, troupeTargets by default.
function(troupe_add_component name)
  cmake_parse_arguments(arg "" "EXPORT" "HEADERS;SOURCES;PUBLIC;PRIVATE" ${ARGN})
  if(NOT arg_EXPORT)
    set(arg_EXPORT troupeTargets)
  endif()
  if(arg_SOURCES)
    add_library(troupe_${name})
    target_sources(troupe_${name} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${arg_HEADERS} PRIVATE ${arg_SOURCES})
    target_include_directories(troupe_${name} PRIVATE src)
    target_link_libraries(troupe_${name} PUBLIC ${arg_PUBLIC} PRIVATE $<BUILD_INTERFACE:troupe_warnings> ${arg_PRIVATE})
    target_compile_features(troupe_${name} PUBLIC cxx_std_20)
  else()
    add_library(troupe_${name} INTERFACE)
    target_sources(troupe_${name} INTERFACE FILE_SET HEADERS BASE_DIRS include FILES ${arg_HEADERS})
    target_link_libraries(troupe_${name} INTERFACE ${arg_PUBLIC})
    target_compile_features(troupe_${name} INTERFACE cxx_std_20)
  endif()
  add_library(troupe::${name} ALIAS troupe_${name})
  set_target_properties(troupe_${name} PROPERTIES EXPORT_NAME ${name})
  troupe_install(troupe_${name} EXPORT ${arg_EXPORT} FILE_SET HEADERS)
endfunction()

# install(TARGETS), and a part of the target `installed`.
function(troupe_install target)
  install(TARGETS ${target} ${ARGN})
  add_dependencies(installed ${target})
endfunction()

# A test binary: the listed sources with doctest's main. It fails when it makes no assertion at all.
function(troupe_add_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE troupe_warnings troupe_test_main ${arg_LINK})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/bin)
  add_test(NAME ${name} COMMAND ${name})
  set(timeout 300)
  # Under ThreadSanitizer programs run 5 to 20 times slower.
  if(TROUPE_SANITIZERS MATCHES thread)
    set(timeout 3000)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${timeout} SKIP_RETURN_CODE 77)
  # One after the other: memory of a device is not shared out among tests.
  if(gpu IN_LIST arg_LABELS)
    set_tests_properties(${name} PROPERTIES RESOURCE_LOCK gpu)
    add_dependencies(gpu_tests ${name})
  endif()
endfunction()

# troupe_add_long_form(test [PROCESSORS n] [COMMAND command...]): what the test does with TROUPE_LONG_TESTS (tests/README.md), as a test of
# its own that `tools/test --long` runs and nothing else does.
function(troupe_add_long_form test)
  cmake_parse_arguments(arg "" "PROCESSORS" "COMMAND" ${ARGN})
  if(NOT arg_COMMAND)
    set(arg_COMMAND ${test})
  endif()
  if(NOT arg_PROCESSORS)
    set(arg_PROCESSORS 1)
  endif()
  add_test(NAME ${test}_long CONFIGURATIONS long COMMAND ${arg_COMMAND})
  set_tests_properties(${test}_long PROPERTIES LABELS long TIMEOUT 7200 SKIP_RETURN_CODE 77 PROCESSORS ${arg_PROCESSORS}
    ENVIRONMENT TROUPE_LONG_TESTS=600)
endfunction()
