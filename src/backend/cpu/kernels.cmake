set(KERNELS_SOURCES backend.cpp facts.cpp norm.cpp dora.cpp pointwise.cpp cast.cpp quantize.cpp random.cpp dropout.cpp
    rope.cpp embed.cpp resize_rows.cpp loss.cpp distillation.cpp reduce.cpp adafactor.cpp apollo.cpp scale_matrix.cpp adamw.cpp lion.cpp muon.cpp schedule_free.cpp)
# A square root that would set errno is a call; without, it is one instruction for a whole vector. No result changes.
set_source_files_properties(adamw.cpp PROPERTIES COMPILE_OPTIONS -fno-math-errno)
# False alarms inside the compiler's own vector intrinsics (GCC bug 105593).
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  set_source_files_properties(quantize.cpp PROPERTIES COMPILE_OPTIONS "-Wno-uninitialized;-Wno-maybe-uninitialized")
endif()
