add_executable(disk disk.cpp)
target_link_libraries(disk PRIVATE snug_base)
