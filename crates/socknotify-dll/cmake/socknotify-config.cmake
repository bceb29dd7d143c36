# For programs that are built for Windows: find_package(socknotify) gives two targets,
# socknotify::socknotify, which needs socknotify.dll beside the program, and socknotify::static.
#
# SOCKNOTIFY_LIBRARY_DIR is the directory that Cargo has built into: target/<target>/release.

if(NOT SOCKNOTIFY_LIBRARY_DIR)
  set(socknotify_FOUND FALSE)
  set(socknotify_NOT_FOUND_MESSAGE "SOCKNOTIFY_LIBRARY_DIR is not set")
  return()
endif()

get_filename_component(_socknotify_include "${CMAKE_CURRENT_LIST_DIR}/../../socknotify-c/include" ABSOLUTE)
if(MSVC)
  set(_socknotify_shared "${SOCKNOTIFY_LIBRARY_DIR}/socknotify.dll.lib")
  set(_socknotify_static "${SOCKNOTIFY_LIBRARY_DIR}/socknotify.lib")
else()
  set(_socknotify_shared "${SOCKNOTIFY_LIBRARY_DIR}/libsocknotify.dll.a")
  set(_socknotify_static "${SOCKNOTIFY_LIBRARY_DIR}/libsocknotify.a")
endif()

# ws2_32 may have the function too, and the first library that has it gives it. Wherever a project
# names ws2_32, the function is asked for before that, with the option that stands before all libraries.
set(_socknotify_symbol ProcessSocketNotifications)
if(CMAKE_SIZEOF_VOID_P EQUAL 4)
  set(_socknotify_symbol _ProcessSocketNotifications@28)
endif()
foreach(_socknotify_kind shared static)
  if(_socknotify_kind STREQUAL "shared")
    set(_socknotify_target socknotify::socknotify)
    set(_socknotify_needs ws2_32)
  else()
    set(_socknotify_target socknotify::static)
    set(_socknotify_needs ws2_32 ntdll userenv)
  endif()
  if(NOT TARGET ${_socknotify_target})
    add_library(${_socknotify_target} INTERFACE IMPORTED)
    set_target_properties(${_socknotify_target} PROPERTIES
      INTERFACE_INCLUDE_DIRECTORIES "${_socknotify_include}")
    if(MSVC)
      set_target_properties(${_socknotify_target} PROPERTIES
        INTERFACE_LINK_LIBRARIES "${_socknotify_${_socknotify_kind}};${_socknotify_needs}")
    else()
      set_target_properties(${_socknotify_target} PROPERTIES
        INTERFACE_LINK_OPTIONS
        "LINKER:--undefined=${_socknotify_symbol};${_socknotify_${_socknotify_kind}}"
        INTERFACE_LINK_LIBRARIES "${_socknotify_needs}")
    endif()
  endif()
endforeach()
