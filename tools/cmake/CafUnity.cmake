# Included by CAF's project when tools/lib/caf.bash builds it (CMAKE_PROJECT_CAF_INCLUDE): compiles CAF's sources in batches, in a third of
# the time. Only for the version that caf.bash names; these two sources share names with others in their batch.
set(CMAKE_UNITY_BUILD ON)
set(CMAKE_UNITY_BUILD_BATCH_SIZE 25)
add_compile_options($<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1000000>)
cmake_language(DEFER CALL set_source_files_properties ${CMAKE_CURRENT_SOURCE_DIR}/libcaf_core/src/binary_serializer.cpp
  DIRECTORY libcaf_core PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
cmake_language(DEFER CALL set_source_files_properties ${CMAKE_CURRENT_SOURCE_DIR}/libcaf_io/src/io/network/native_socket.cpp
  DIRECTORY libcaf_io PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
