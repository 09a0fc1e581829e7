set(FILES_SOURCES json.cpp safetensors.cpp pickle.cpp torch_file.cpp bnb.cpp hf_config.cpp peft.cpp peft_tensors.cpp
    pattern.cpp gguf.cpp gguf_types.cpp gguf_import.cpp gguf_tokenizer.cpp model_path.cpp)
