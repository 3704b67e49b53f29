# Runs PROGRAM in DIRECTORY, emptied before, once for each of RUNS (its arguments, separated by spaces; runs by commas; - for none). Fails
# unless every run succeeds and the output of all together matches EXPECT.
file(REMOVE_RECURSE ${DIRECTORY})
file(MAKE_DIRECTORY ${DIRECTORY})
# Keys of the test's own: nothing is written to the home of whoever runs it.
set(ENV{TROUPE_KEYS} ${DIRECTORY}/keys)
string(REPLACE "," ";" runs "${RUNS}")
foreach(run IN LISTS runs)
  string(REGEX REPLACE "^-$" "" arguments "${run}")
  separate_arguments(arguments UNIX_COMMAND "${arguments}")
  execute_process(COMMAND ${PROGRAM} ${arguments} WORKING_DIRECTORY ${DIRECTORY}
    OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE code)
  message("${output}${errors}")
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "${PROGRAM} ${run} ended with ${code}")
  endif()
  string(APPEND all "${output}")
endforeach()
if(NOT all MATCHES "${EXPECT}")
  message(FATAL_ERROR "the output does not match: ${EXPECT}")
endif()
