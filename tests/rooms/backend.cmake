snug_test(op_test SOURCES op_runner.cpp count_allocations.cpp ROOMS base tensor program backend backend_cpu)
snug_test(grad_test ROOMS base tensor program backend backend_cpu)
snug_test(ref_test ROOMS base tensor program format)
snug_test(cpu_backend_test ROOMS base tensor program backend backend_cpu)
