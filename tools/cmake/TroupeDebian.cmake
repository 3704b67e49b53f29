# Debian packages, by cpack (tools/package). A CMake component is a package. tools/deploy has the service and the maintainer scripts.
set(TROUPE_PACKAGE_REVISION 1 CACHE STRING "Revision of the Debian packages; a higher one replaces a lower one")

# debNN or ubuntuNN.NN after the revision: packages of one distribution do not replace those of another.
set(distribution "")
if(EXISTS /etc/os-release)
  file(STRINGS /etc/os-release release)
  foreach(line IN LISTS release)
    if(line MATCHES "^(ID|VERSION_ID)=\"?([^\"]*)")
      set(release_${CMAKE_MATCH_1} ${CMAKE_MATCH_2})
    endif()
  endforeach()
  set(distribution "~${release_ID}${release_VERSION_ID}")
  string(REPLACE "~debian" "~deb" distribution "${distribution}")
endif()
# As dch does it.
set(maintainer "Troupe's builder <root@localhost>")
if(DEFINED ENV{DEBEMAIL})
  set(maintainer "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_PACKAGE_NAME troupe)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "${maintainer}")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${TROUPE_PACKAGE_REVISION}${distribution})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION TRUE)
# lintian of Debian 12 knows no zstd.
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_THREADS 0)
# What only a package has: the service and its configuration, packed manual pages, copyright and changelog.
set(CPACK_PRE_BUILD_SCRIPTS ${PROJECT_SOURCE_DIR}/tools/cmake/debian_files.cmake)
set(CPACK_TROUPE_DEPLOY ${PROJECT_SOURCE_DIR}/tools/deploy)

set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/tools/packages.txt)
# _troupe_development_packages(result section except...): the -dev packages of a section of tools/packages.txt.
function(_troupe_development_packages result section)
  file(STRINGS ${PROJECT_SOURCE_DIR}/tools/packages.txt lines)
  set(names "")
  foreach(line IN LISTS lines)
    if(line MATCHES "^\\[(.*)\\]")
      set(current ${CMAKE_MATCH_1})
    elseif(current STREQUAL section AND line MATCHES "^([a-z0-9.+-]+-dev) " AND NOT CMAKE_MATCH_1 IN_LIST ARGN)
      list(APPEND names ${CMAKE_MATCH_1})
    endif()
  endforeach()
  list(JOIN names ", " names)
  set(${result} "${names}" PARENT_SCOPE)
endfunction()

# _troupe_describe_package(name SECTION s ARCHITECTURE a SUMMARY text TEXT text [DEPENDS|RECOMMENDS|SUGGESTS|CONFLICTS packages])
function(_troupe_describe_package name)
  cmake_parse_arguments(arg "" "SECTION;ARCHITECTURE;SUMMARY;TEXT;DEPENDS;RECOMMENDS;SUGGESTS;CONFLICTS" "" ${ARGN})
  string(TOUPPER ${name} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${arg_SUMMARY}\n${arg_TEXT}" PARENT_SCOPE)
  foreach(field SECTION ARCHITECTURE DEPENDS RECOMMENDS SUGGESTS CONFLICTS)
    if(arg_${field})
      set(CPACK_DEBIAN_${upper}_PACKAGE_${field} "${arg_${field}}" PARENT_SCOPE)
    endif()
  endforeach()
  set(described ${described} ${name} PARENT_SCOPE)
endfunction()

set(described "")
set(same_version "(= ${PROJECT_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})")
set(processor "")
if(TROUPE_MARCH)
  set(processor "\n.\nThe programs need a processor of level ${TROUPE_MARCH}.")
endif()
_troupe_describe_package(troupe
  SUMMARY "distributed training on the C++ Actor Framework: programs"
  TEXT "Troupe runs training programs over worker processes on one or more hosts,
with the same result, bit for bit, on any number of them. This package has
caf-node, which starts and watches the workers of a host, its systemd
service, the command troupe for keys, checkpoints and runs, and charlm, which
trains a small language model.${processor}"
  DEPENDS "adduser, init-system-helpers (>= 1.52)"
  SUGGESTS "troupe-doc, troupe-programs, libtroupe-dev")
set(CPACK_DEBIAN_TROUPE_PACKAGE_CONTROL_EXTRA
  ${PROJECT_SOURCE_DIR}/tools/deploy/debian/conffiles
  ${PROJECT_SOURCE_DIR}/tools/deploy/debian/postinst
  ${PROJECT_SOURCE_DIR}/tools/deploy/debian/prerm
  ${PROJECT_SOURCE_DIR}/tools/deploy/debian/postrm)
_troupe_describe_package(troupe-programs
  SUMMARY "distributed training on the C++ Actor Framework: tables, trees, Keras"
  TEXT "Training programs for tables, boosted trees and Keras models, and one that
predicts with what they have trained. XGBoost, LightGBM, TensorFlow and ONNX
Runtime are opened at run time, where they are there.${processor}"
  RECOMMENDS troupe
  SUGGESTS libxgboost0)
_troupe_describe_package(troupe-libtorch
  SUMMARY "distributed training on the C++ Actor Framework: LibTorch"
  TEXT "Training programs that use LibTorch: mnist, a convolutional network, and
gpt, a small transformer. In a package of its own, because LibTorch brings
some 160 packages.${processor}"
  RECOMMENDS "troupe, libopenblas0-pthread"
  # Debian's package gpt is a compiler whose command has the same name.
  CONFLICTS gpt)
# Those that the programs and tests alone use are left out.
_troupe_development_packages(libraries needed libcli11-dev libeigen3-dev doctest-dev)
_troupe_describe_package(libtroupe-dev
  SECTION libdevel
  SUMMARY "distributed training on the C++ Actor Framework: development files"
  TEXT "Headers, static libraries and the CMake package of Troupe, for training
programs of one's own: find_package(troupe), troupe_add_program. The C++
Actor Framework that the libraries were compiled with is contained, in a
directory of its own."
  DEPENDS "${libraries}, pkg-config"
  RECOMMENDS "g++, cmake (>= 3.25), troupe"
  SUGGESTS "troupe-doc, capnproto")
_troupe_development_packages(torch libtorch)
_troupe_describe_package(libtroupe-libtorch-dev
  SECTION libdevel
  SUMMARY "distributed training on the C++ Actor Framework: LibTorch trainer"
  TEXT "Headers, a static library and a part of the CMake package, for programs that
train LibTorch modules: find_package(troupe COMPONENTS libtorch)."
  DEPENDS "libtroupe-dev ${same_version}, ${torch}")
_troupe_describe_package(troupe-doc
  SECTION doc
  ARCHITECTURE all
  SUMMARY "distributed training on the C++ Actor Framework: documents and examples"
  TEXT "The documents of Troupe, and the sources of small programs, one for each way
to use it.")

get_cmake_property(CPACK_COMPONENTS_ALL COMPONENTS)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  if(NOT component IN_LIST described)
    message(FATAL_ERROR "tools/cmake/TroupeDebian.cmake describes no package for the component ${component}")
  endif()
endforeach()
if(TROUPE_TORCH)
  # That LibTorch is a directory of this machine, and no package.
  list(REMOVE_ITEM CPACK_COMPONENTS_ALL troupe-libtorch libtroupe-libtorch-dev)
endif()
include(CPack)
