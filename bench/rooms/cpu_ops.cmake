add_executable(cpu_ops cpu_ops.cpp)
target_link_libraries(cpu_ops PRIVATE snug_backend_cpu)
