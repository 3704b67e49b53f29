# Run by cpack before it makes the packages: adds to each what only a package has. Uses CPACK_TEMPORARY_INSTALL_DIRECTORY, which has a
# directory for each component.
set(deploy ${CPACK_TROUPE_DEPLOY})

# pack(file): as file.gz, without name and time.
function(pack file)
  execute_process(COMMAND gzip -9nf ${file} COMMAND_ERROR_IS_FATAL ANY)
  file(CHMOD ${file}.gz PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endfunction()

file(GLOB components ${CPACK_TEMPORARY_INSTALL_DIRECTORY}/*)
foreach(root IN LISTS components)
  if(NOT IS_DIRECTORY ${root}/usr)
    continue()
  endif()
  cmake_path(GET root FILENAME component)
  file(GLOB pages ${root}/usr/share/man/man1/*.1)
  foreach(page IN LISTS pages)
    pack(${page})
  endforeach()
  # Where Debian's zsh looks.
  if(EXISTS ${root}/usr/share/zsh/site-functions)
    file(RENAME ${root}/usr/share/zsh/site-functions ${root}/usr/share/zsh/vendor-completions)
  endif()
  if(component STREQUAL "troupe")
    file(COPY ${deploy}/caf-node.service DESTINATION ${root}/usr/lib/systemd/system)
    file(COPY ${deploy}/caf-node.default DESTINATION ${root}/etc/default)
    file(RENAME ${root}/etc/default/caf-node.default ${root}/etc/default/caf-node)
  endif()
  set(documents ${root}/usr/share/doc/${component})
  file(COPY ${deploy}/debian/copyright DESTINATION ${documents})
  # Takes the time from SOURCE_DATE_EPOCH, if it is set.
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(WRITE ${documents}/changelog.Debian "troupe (${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE}) unstable; urgency=medium\n\n"
    "  * Built from Troupe's sources. CHANGELOG.md says what has changed.\n\n -- ${CPACK_PACKAGE_CONTACT}  ${date}\n")
  pack(${documents}/changelog.Debian)
endforeach()
