# What `cmake --install` adds to the targets' own rules, so that find_package(troupe) gives another project troupe::runtime and
# troupe_add_program.
include(CMakePackageConfigHelpers)

set(TROUPE_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/troupe)
set(TROUPE_SCHEMA_DIR ${CMAKE_INSTALL_DATADIR}/troupe)
configure_package_config_file(tools/cmake/troupeConfig.cmake.in ${PROJECT_BINARY_DIR}/package/troupeConfig.cmake
  INSTALL_DESTINATION ${TROUPE_PACKAGE_DIR}
  PATH_VARS TROUPE_SCHEMA_DIR)
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/package/troupeConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(EXPORT troupeTargets NAMESPACE troupe:: DESTINATION ${TROUPE_PACKAGE_DIR})
if(TROUPE_LIBTORCH_FOUND)
  install(EXPORT troupeLibtorchTargets NAMESPACE troupe:: DESTINATION ${TROUPE_PACKAGE_DIR})
endif()
if(TROUPE_XGBOOST_FOUND)
  install(EXPORT troupeXgboostTargets NAMESPACE troupe:: DESTINATION ${TROUPE_PACKAGE_DIR})
endif()
install(FILES
    ${PROJECT_BINARY_DIR}/package/troupeConfig.cmake
    ${PROJECT_BINARY_DIR}/package/troupeConfigVersion.cmake
    ${PROJECT_SOURCE_DIR}/tools/cmake/TroupeProgram.cmake
  DESTINATION ${TROUPE_PACKAGE_DIR})
