# Builds the examples with the installed package. Copy this directory, then: cmake -B build && cmake --build build
cmake_minimum_required(VERSION 3.25)
project(troupe_examples LANGUAGES CXX)

find_package(troupe REQUIRED)
file(GLOB examples CONFIGURE_DEPENDS *.cpp)
foreach(source IN LISTS examples)
  cmake_path(GET source STEM name)
  troupe_add_program(${name} SOURCES ${source} LINK troupe::serving)
endforeach()
