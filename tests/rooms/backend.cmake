snug_test(op_test SOURCES op_runner.cpp count_allocations.cpp ROOMS base tensor program backend backend_cpu)
