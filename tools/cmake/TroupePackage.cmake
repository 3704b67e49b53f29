# What `cmake --install` adds to the targets' own rules, so that find_package(troupe) gives another project troupe::runtime and
# troupe_add_program.
include(CMakePackageConfigHelpers)

set(TROUPE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)
set(TROUPE_SCHEMA_DIR ${CMAKE_INSTALL_DATADIR}/troupe)
set(TROUPE_CUDART_DIR ${CMAKE_INSTALL_LIBDIR}/troupe)
configure_package_config_file(tools/cmake/troupeConfig.cmake.in ${PROJECT_BINARY_DIR}/package/troupeConfig.cmake
  INSTALL_DESTINATION ${TROUPE_PACKAGE_DIR}
  PATH_VARS TROUPE_SCHEMA_DIR TROUPE_CUDART_DIR)
if(TROUPE_CUDA_FOUND)
  # Those who link the libraries need it, and no more of the toolkit. NVIDIA's licence allows to pass it on.
  install(FILES $<TARGET_FILE:CUDA::cudart_static> DESTINATION ${TROUPE_CUDART_DIR})
endif()
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/troupeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT troupeTargets NAMESPACE troupe:: DESTINATION ${TROUPE_PACKAGE_DIR})
if(TROUPE_LIBTORCH_FOUND)
  install(EXPORT troupeLibtorchTargets NAMESPACE troupe:: DESTINATION ${TROUPE_PACKAGE_DIR})
endif()
install(FILES
    ${PROJECT_BINARY_DIR}/package/troupeConfig.cmake
    ${PROJECT_BINARY_DIR}/package/troupeConfigVersion.cmake
    ${PROJECT_SOURCE_DIR}/tools/cmake/TroupeProgram.cmake
    ${PROJECT_SOURCE_DIR}/tools/cmake/TroupeTorch.cmake
  DESTINATION ${TROUPE_PACKAGE_DIR})

# Documents and examples, side by side as in the sources, so that their links lead somewhere. The examples build by themselves.
install(FILES README.md CHANGELOG.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY apps/examples DESTINATION ${CMAKE_INSTALL_DOCDIR}/apps FILES_MATCHING PATTERN "*.cpp" PATTERN "*.hpp")
install(FILES tools/cmake/examples.cmake DESTINATION ${CMAKE_INSTALL_DOCDIR}/apps/examples RENAME CMakeLists.txt)
