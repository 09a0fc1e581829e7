// Decides which nodes of a layer's tape become one composite op (program/swiglu_gemm.h). That follows from the layer
// and the numerics alone, before anything is kept, offloaded or emitted, so that results never depend on what is kept.
#pragma once

#include <memory>
#include <span>

#include "model/node.h"

namespace snug {

// Makes one op forward of a linear without bias and the SwiGLU of its result, and one op backward of a SwiGLU and the
// linear that reads it, where the two follow each other. Where products are in fp8, SwiGLU's ops write the codes of
// what they give for the linears beside them instead (program/swiglu_quantize.h).
void fuse(std::span<const std::unique_ptr<Node>> tape, const Builder& b);

}  // namespace snug
