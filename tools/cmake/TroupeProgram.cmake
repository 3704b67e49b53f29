# A training program: exact arithmetic (what the promise of equal bits needs of a compiler) and a build id, by which nodes tell
# whether they have the same program. The processor level is named, never `native`: two hosts must compute the same.
include_guard()
if(NOT DEFINED TROUPE_MARCH)
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    set(TROUPE_MARCH "x86-64-v3" CACHE STRING "Processor level (-march) of training programs; empty for the compiler's default")
  else()
    set(TROUPE_MARCH "" CACHE STRING "Processor level (-march) of training programs; empty for the compiler's default")
  endif()
endif()

function(troupe_add_program name)
  cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE troupe::runtime ${arg_LINK})
  target_compile_options(${name} PRIVATE -ffp-contract=off -fno-fast-math $<$<BOOL:${TROUPE_MARCH}>:-march=${TROUPE_MARCH}>)
  target_link_options(${name} PRIVATE -Wl,--build-id=sha1)
  set_target_properties(${name} PROPERTIES TROUPE_TRAINS TRUE)
endfunction()
