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
  const int64_t turned = spec.rope.dim > 0 ? spec.rope.dim : model.heads.dim;
  model.rope = rope_table(spec.rope, turned, 1, true);
  model.local_rope = rope_table(spec.local_rope, turned, 1);
  model.more = spec.final_norm.plus_one;
  model.layer_norm = spec.final_norm.kind == NormKind::Layer;
  model.epsilon = spec.final_norm.epsilon;
  model.embedding_factor = spec.embedding_factor;
  model.logits_factor = spec.logits_factor;
  model.logits_cap = spec.logits_cap;
  model.embedding = matrix("model.embed_tokens.weight");
  model.final_norm = vector("model.norm.weight");
  if (!spec.final_norm.bias.empty()) model.final_norm_bias = vector(spec.final_norm.bias);
  if (!spec.tied) model.head = matrix("lm_head.weight");
  for (size_t i = 0; i < spec.layers.size(); i++) {
    const std::string at = "model.layers." + std::to_string(i) + ".";
    const auto linear = [&](const std::string& name) {
      Linear<S> l{matrix(at + name + ".weight"), {}, {}};
      if (tensors.contains(at + name + ".bias")) l.bias = vector(at + name + ".bias");
      return l;
    };
    // Rows [begin, end) of a linear that files have as one with others.
    const auto rows_of = [&](const Linear<S>& whole, int64_t begin, int64_t end) {
      Linear<S> part{Matrix<S>(end - begin, whole.weight.cols), {}, {}};
      const auto first = whole.weight.data.begin() + begin * whole.weight.cols;
      std::copy(first, first + (end - begin) * whole.weight.cols, part.weight.data.begin());
      if (!whole.bias.empty()) part.bias.assign(whole.bias.begin() + begin, whole.bias.begin() + end);
      return part;
    };
    const auto part = [&](const std::string& own, const std::string& fused, int64_t begin, int64_t end) {
      return tensors.contains(at + own + ".weight") ? linear(own) : rows_of(linear(fused), begin, end);
    };
    const LayerSpec& layer = spec.layers[i];
    const int64_t q = layer.heads.query_columns(), k = q + layer.heads.key_columns(), v = k + layer.heads.key_columns();
    const int64_t ffn = layer.down.in, up = layer.gated ? ffn : 0;
    const auto norm = [&](const NormSpec& of) { return of.weight.empty() ? std::vector<S>() : vector(at + of.weight); };
    const auto head_norm = [&](const NormSpec& of, int64_t heads) {
      if (of.weight.find("{}") == std::string::npos) return norm(of);
      std::vector<S> gains;
      for (int64_t head = 0; head < heads; head++) {
        const std::vector<S> one = vector(at + fmt::format(fmt::runtime(of.weight), head));
        gains.insert(gains.end(), one.begin(), one.end());
      }
      return gains;
    };
    const auto bias = [&](const NormSpec& of) { return of.bias.empty() ? std::vector<S>() : vector(at + of.bias); };
    model.blocks.push_back({norm(layer.attention_norm),
                            norm(layer.mlp_norm),
                            part("self_attn.q_proj", "self_attn.qkv_proj", 0, q),
                            part("self_attn.k_proj", "self_attn.qkv_proj", q, k),
                            part("self_attn.v_proj", "self_attn.qkv_proj", k, v),
                            linear("self_attn.o_proj"),
                            layer.gated ? part("mlp.gate_proj", layer.gate_up.parts[0].module, 0, ffn) : Linear<S>(),
                            part("mlp.up_proj", layer.gate_up.parts[0].module, up, up + ffn),
                            linear(layer.down.parts[0].module),
                            layer.window,
                            layer.rope,
                            head_norm(layer.query_norm, layer.heads.heads),
                            head_norm(layer.key_norm, layer.heads.kv_heads),
                            layer.attention_scale,
                            layer.attention_cap,
                            layer.residual_multiplier,
                            norm(layer.attention_post_norm),
                            norm(layer.mlp_post_norm),
                            layer.gate,
                            layer.local_rope,
                            layer.rope_interleaved,
                            bias(layer.attention_norm),
                            bias(layer.mlp_norm),
                            layer.gated,
                            layer.rope_before_norms,
                            layer.parallel});
  }
  return model;
}

}  // namespace snug::ref
