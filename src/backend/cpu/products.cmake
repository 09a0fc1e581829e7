set(PRODUCTS_SOURCES gemm.cpp onednn.cpp tile_product.cpp attention.cpp attention_backward.cpp attention_tiles.cpp
    cached_attention.cpp)

# Its exponentials want multiply and add in one step.
set_source_files_properties(attention_tiles.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=fast)
