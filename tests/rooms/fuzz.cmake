if(SNUG_FUZZ)
  add_subdirectory(fuzz)
endif()
