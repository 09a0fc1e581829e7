// The naive decoder of ref/forward.h, read from a Hugging Face model directory.
#pragma once

#include <cstring>
#include <map>

#include "base/file.h"
#include "format/safetensors.h"
#include "model/rope.h"
#include "model/spec.h"
#include "ref/forward.h"

namespace snug::ref {

// Tensors of a file or a model, widened.
using Tensors = std::map<std::string, Matrix<double>>;

// Vectors are one row.
inline Tensors read_tensors(const SafetensorsIndex& index) {
  Tensors tensors;
  for (const SafetensorsEntry& entry : index.entries()) {
    const int64_t cols = entry.shape.back(), rows = entry.shape.size() > 1 ? entry.shape[0] : 1;
    Matrix<double>& m = tensors[entry.name] = Matrix<double>(rows, cols);
    std::vector<std::byte> bytes(entry.bytes);
    File::open_read(index.files()[entry.file], IoMode::Buffered).read(entry.offset, bytes);
    dispatch_float(entry.dtype.value(), [&]<class T>() {
      for (size_t i = 0; i < m.data.size(); i++) {
        T x;
        std::memcpy(&x, bytes.data() + i * sizeof(T), sizeof(T));
        m.data[i] = static_cast<double>(static_cast<float>(x));
      }
    });
  }
  return tensors;
}

template <class S>
Matrix<S> convert(const Matrix<double>& from) {
  Matrix<S> to(from.rows, from.cols);
  std::ranges::copy(from.data, to.data.begin());
  return to;
}

// Tensors under the names that Llama's files have; std::out_of_range if one is missing.
template <class S>
Decoder<S> make_decoder(const ModelSpec& spec, const Tensors& tensors) {
  const auto matrix = [&](const std::string& name) { return convert<S>(tensors.at(name)); };
  const auto vector = [&](const std::string& name) { return matrix(name).data; };
  Decoder<S> model;
  model.heads = spec.layers.at(0).heads;
  model.rope = rope_table(spec.rope, model.heads.dim, 1);
  model.local_rope = rope_table(spec.local_rope, model.heads.dim, 1);
  model.more = spec.final_norm.plus_one;
  model.epsilon = spec.final_norm.epsilon;
  model.embedding_factor = spec.embedding_factor;
  model.logits_factor = spec.logits_factor;
  model.logits_cap = spec.logits_cap;
  model.embedding = matrix("model.embed_tokens.weight");
  model.final_norm = vector("model.norm.weight");
  if (!spec.tied) model.head = matrix("lm_head.weight");
  for (size_t i = 0; i < spec.layers.size(); i++) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    const auto linear = [&](const std::string& name) {
      Linear<S> l{matrix(at + name + ".weight"), {}, {}};
      if (tensors.contains(at + name + ".bias")) l.bias = vector(at + name + ".bias");
      return l;
    };
    const LayerSpec& layer = spec.layers[i];
    const auto norm = [&](const NormSpec& of) { return of.weight.empty() ? std::vector<S>() : vector(at + of.weight); };
    model.blocks.push_back({norm(layer.attention_norm),
                            norm(layer.mlp_norm),
                            linear("self_attn.q_proj"),
                            linear("self_attn.k_proj"),
                            linear("self_attn.v_proj"),
                            linear("self_attn.o_proj"),
                            linear("mlp.gate_proj"),
                            linear("mlp.up_proj"),
                            linear("mlp.down_proj"),
                            layer.window,
                            layer.rope,
                            norm(layer.query_norm),
                            norm(layer.key_norm),
                            layer.attention_scale,
                            layer.attention_cap,
                            layer.branch_factor,
                            norm(layer.attention_post_norm),
                            norm(layer.mlp_post_norm),
                            layer.gate,
                            layer.local_rope});
  }
  return model;
}

}  // namespace snug::ref
