set(PRODUCTS_SOURCES gemm.cpp onednn.cpp tile_product.cpp attention.cpp attention_backward.cpp attention_tiles.cpp
    cached_attention.cpp)
