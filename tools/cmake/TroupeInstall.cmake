# What is installed where, and in which package (TroupeDebian.cmake describes them). A CMake component is a package, by its name.
include_guard()

option(TROUPE_INSTALL "Make rules that install Troupe" ${PROJECT_IS_TOP_LEVEL})
# Whatever a rule does not say: headers, libraries and what goes with them.
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME libtroupe-dev)
# Training programs lie in a directory of their own: the one that a node may be given as its --program-dir, in which a file's name is
# all that a driver says. Users find them by links in bin.
set(TROUPE_PROGRAM_DIR ${CMAKE_INSTALL_LIBEXECDIR}/troupe)

# troupe_install(target [COMPONENT package] [arguments of install(TARGETS)]): installs it, as a part of the target `installed`. A program
# brings its manual page and completions, and belongs to the package "troupe" unless another is named.
function(troupe_install target)
  if(NOT TROUPE_INSTALL)
    return()
  endif()
  cmake_parse_arguments(arg "" "COMPONENT;EXPORT" "" ${ARGN})
  add_dependencies(installed ${target})
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "EXECUTABLE")
    if(NOT arg_COMPONENT)
      set(arg_COMPONENT troupe)
    endif()
    _troupe_install_program(${target} ${arg_COMPONENT})
    return()
  endif()
  if(NOT arg_COMPONENT)
    set(arg_COMPONENT libtroupe-dev)
  endif()
  set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME ${arg_COMPONENT})
  install(TARGETS ${target} EXPORT ${arg_EXPORT} ${arg_UNPARSED_ARGUMENTS})
  # In the order in which they are made, so that each comes after those that it uses.
  if(type STREQUAL "STATIC_LIBRARY" AND arg_COMPONENT STREQUAL "libtroupe-dev")
    set_property(GLOBAL APPEND PROPERTY TROUPE_INSTALLED_LIBRARIES ${target})
  endif()
endfunction()

function(_troupe_install_program target component)
  get_target_property(name ${target} OUTPUT_NAME)
  if(NOT name)
    set(name ${target})
  endif()
  get_target_property(trains ${target} TROUPE_TRAINS)
  get_target_property(libraries ${target} LINK_LIBRARIES)
  if(trains)
    install(TARGETS ${target} DESTINATION ${TROUPE_PROGRAM_DIR} COMPONENT ${component})
  else()
    install(TARGETS ${target} COMPONENT ${component})
  endif()
  # Without a command line it is started by another program, not by users.
  if(NOT libraries MATCHES "troupe_command_line|troupe_dashboard_option")
    return()
  endif()
  set(dir ${PROJECT_BINARY_DIR}/package/${name})
  if(trains)
    file(RELATIVE_PATH link ${CMAKE_INSTALL_FULL_BINDIR} ${CMAKE_INSTALL_FULL_LIBEXECDIR}/troupe/${name})
    file(MAKE_DIRECTORY ${dir})
    file(CREATE_LINK ${link} ${dir}/${name} SYMBOLIC)
    install(FILES ${dir}/${name} DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT ${component})
  endif()
  set_property(GLOBAL APPEND PROPERTY TROUPE_DESCRIBED_PROGRAMS ${name})
  set(files ${dir}/${name}.1 ${dir}/${name}.bash ${dir}/_${name})
  add_custom_command(OUTPUT ${files}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${dir}
    COMMAND $<TARGET_FILE:${target}> --describe man > ${dir}/${name}.1
    COMMAND $<TARGET_FILE:${target}> --describe bash > ${dir}/${name}.bash
    COMMAND $<TARGET_FILE:${target}> --describe zsh > ${dir}/_${name}
    DEPENDS ${target} COMMENT "Describing ${name}" VERBATIM)
  add_custom_target(${target}_description ALL DEPENDS ${files})
  add_dependencies(installed ${target}_description)
  install(FILES ${dir}/${name}.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
  install(FILES ${dir}/${name}.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME ${name} COMPONENT ${component})
  install(FILES ${dir}/_${name} DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions COMPONENT ${component})
endfunction()
