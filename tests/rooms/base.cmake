snug_test(file_test ROOMS base)
snug_test(io_ring_test ROOMS base)
snug_test(cores_test ROOMS base)
snug_test(memory_test ROOMS base)
