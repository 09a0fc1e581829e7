set(PRODUCTS_SOURCES gemm.cpp fp8_gemm.cpp matmul.cpp onednn.cpp tile_product.cpp attention.cpp attention_backward.cpp
    attention_tiles.cpp cached_attention.cpp)

# Exponentials and sums of products want multiply and add in one step; vectors are passed within the file only, so that
# how a processor without registers of their size would pass them concerns nobody.
set_source_files_properties(attention_tiles.cpp tile_product.cpp PROPERTIES
                            COMPILE_OPTIONS "-ffp-contract=fast;-Wno-psabi")
