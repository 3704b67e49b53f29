# Runs PROGRAM in DIRECTORY, emptied before, and fails unless it succeeds and its output matches EXPECT.
file(REMOVE_RECURSE ${DIRECTORY})
file(MAKE_DIRECTORY ${DIRECTORY})
# Keys of the test's own: nothing is written to the home of whoever runs it.
set(ENV{TROUPE_KEYS} ${DIRECTORY}/keys)
execute_process(COMMAND ${PROGRAM} WORKING_DIRECTORY ${DIRECTORY} OUTPUT_VARIABLE output ERROR_VARIABLE errors RESULT_VARIABLE code)
message("${output}${errors}")
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with ${code}")
endif()
if(NOT output MATCHES "${EXPECT}")
  message(FATAL_ERROR "the output does not match: ${EXPECT}")
endif()
