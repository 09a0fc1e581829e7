snug_test(safetensors_test ROOMS format)
snug_test(torch_file_test ROOMS format)
snug_test(model_path_test ROOMS format)
snug_test(hf_config_test ROOMS model)
snug_test(bnb_test ROOMS model)
snug_test(peft_test ROOMS format)
snug_test(gguf_test ROOMS model)
snug_test(parquet_test ROOMS format)

