option(TROUPE_UNITY "Compile sources of a folder together, several times as fast; OFF compiles each by itself" ON)
set(TROUPE_UNITY_BATCH 20 CACHE STRING "The most sources that are compiled together")

# troupe_unite(target [ALONE sources...]): its sources are compiled in batches, each of sources of one directory, so that a new source changes one batch. CMake's
# own UNITY_BUILD writes absolute paths into its batches, by which ccache takes each clone for another program.
# The property TROUPE_SOURCES keeps the sources. ALONE: sources in whose place a test links others.
function(troupe_unite target)
  cmake_parse_arguments(arg "" "" "ALONE" ${ARGN})
  get_target_property(sources ${target} SOURCES)
  set_target_properties(${target} PROPERTIES TROUPE_SOURCES "${sources}")
  if(NOT TROUPE_UNITY)
    return()
  endif()
  set(directories "")
  set(result "")
  foreach(source IN LISTS sources)
    if(IS_ABSOLUTE "${source}" OR NOT source MATCHES "^[^$]*\\.cpp$" OR source IN_LIST arg_ALONE)
      list(APPEND result ${source})
      continue()
    endif()
    cmake_path(GET source PARENT_PATH directory)
    string(MAKE_C_IDENTIFIER "of_${directory}" key)
    list(APPEND directories ${key})
    list(APPEND ${key} ${source})
  endforeach()
  list(REMOVE_DUPLICATES directories)
  foreach(key IN LISTS directories)
    # Batches of equal size.
    list(LENGTH ${key} count)
    math(EXPR batches "(${count} + ${TROUPE_UNITY_BATCH} - 1) / ${TROUPE_UNITY_BATCH}")
    math(EXPR size "(${count} + ${batches} - 1) / ${batches}")
    foreach(batch RANGE 1 ${batches})
      math(EXPR first "(${batch} - 1) * ${size}")
      list(SUBLIST ${key} ${first} ${size} members)
      list(TRANSFORM members REPLACE "(.+)" "#include \"\\1\"\n")
      list(JOIN members "" text)
      set(file ${CMAKE_CURRENT_BINARY_DIR}/unity/${target}_${key}_${batch}.cpp)
      file(CONFIGURE OUTPUT ${file} CONTENT "${text}" @ONLY)
      list(APPEND result ${file})
    endforeach()
  endforeach()
  set_property(TARGET ${target} PROPERTY SOURCES ${result})
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  # What a source keeps to itself is in an included file now, which GCC takes for a header. The other two are wrong about
  # variants and optionals (GCC's bugs 105562 and 105651) as soon as a unit is large; clang-tidy looks for what they look for.
  target_compile_options(${target} PRIVATE
    "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage;-Wno-maybe-uninitialized;-Wno-restrict>")
endfunction()

# troupe_optimize_lightly(target): for what decides, talks and prints and does not compute. A quarter of the compiler's time less.
function(troupe_optimize_lightly target)
  if(CMAKE_BUILD_TYPE STREQUAL Release)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
  endif()
endfunction()

# One call per library folder: the headers become a file set whose base is `include` (the include path, the install and the check
# that every public header compiles alone), the sources are listed, the links are named. A folder that is not linked has no
# include path, so an upward include fails to compile. EXPORT names the export set, troupeTargets by default,
# and COMPONENT the package. LIGHT: troupe_optimize_lightly. ALONE: troupe_unite.
function(troupe_add_component name)
  cmake_parse_arguments(arg "LIGHT" "EXPORT;COMPONENT" "HEADERS;SOURCES;ALONE;PUBLIC;PRIVATE" ${ARGN})
  if(NOT arg_EXPORT)
    set(arg_EXPORT troupeTargets)
  endif()
  if(NOT arg_COMPONENT)
    set(arg_COMPONENT libtroupe-dev)
  endif()
  if(arg_SOURCES)
    add_library(troupe_${name})
    target_sources(troupe_${name} PUBLIC FILE_SET HEADERS BASE_DIRS include FILES ${arg_HEADERS} PRIVATE ${arg_SOURCES})
    target_include_directories(troupe_${name} PRIVATE src)
    target_link_libraries(troupe_${name} PUBLIC ${arg_PUBLIC} PRIVATE $<BUILD_INTERFACE:troupe_warnings> ${arg_PRIVATE})
    target_compile_features(troupe_${name} PUBLIC cxx_std_20)
    if(arg_LIGHT)
      troupe_optimize_lightly(troupe_${name})
    endif()
    troupe_unite(troupe_${name} ALONE ${arg_ALONE})
  else()
    add_library(troupe_${name} INTERFACE)
    target_sources(troupe_${name} INTERFACE FILE_SET HEADERS BASE_DIRS include FILES ${arg_HEADERS})
    target_link_libraries(troupe_${name} INTERFACE ${arg_PUBLIC})
    target_compile_features(troupe_${name} INTERFACE cxx_std_20)
  endif()
  add_library(troupe::${name} ALIAS troupe_${name})
  set_target_properties(troupe_${name} PROPERTIES EXPORT_NAME ${name})
  troupe_install(troupe_${name} COMPONENT ${arg_COMPONENT} EXPORT ${arg_EXPORT} FILE_SET HEADERS)
endfunction()

# A test binary: the listed sources with doctest's main. It fails when it makes no assertion at all. STARTS names the targets that it
# starts or opens: they are built before it, and found when it runs (tests/support/built.hpp).
function(troupe_add_test name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK;LABELS;STARTS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE troupe_warnings troupe_test_main ${arg_LINK})
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/bin)
  if(arg_STARTS)
    add_dependencies(${name} ${arg_STARTS})
  endif()
  add_test(NAME ${name} COMMAND ${name})
  set(timeout 600)
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

# troupe_embed_file(TARGET INPUT HEADER NAMESPACE NAME): makes a file part of the target. NAMESPACE::NAME, which HEADER declares, returns
# its content as a std::string_view.
function(troupe_embed_file target input header namespace name)
  set(output ${CMAKE_CURRENT_BINARY_DIR}/${name}.cpp)
  set(script ${PROJECT_SOURCE_DIR}/tools/cmake/EmbedFile.cmake)
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -DINPUT=${input} -DHEADER=${header} -DNAMESPACE=${namespace} -DNAME=${name} -DOUTPUT=${output} -P ${script}
    DEPENDS ${input} ${script} VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()
