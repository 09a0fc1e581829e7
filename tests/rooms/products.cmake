snug_test(gemm_test ROOMS backend_cpu)
snug_test(attention_test ROOMS backend_cpu)
