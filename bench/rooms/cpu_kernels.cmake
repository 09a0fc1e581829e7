add_executable(cpu_kernels cpu_kernels.cpp)
target_link_libraries(cpu_kernels PRIVATE snug_options snug_backend_cpu benchmark::benchmark benchmark::benchmark_main)
