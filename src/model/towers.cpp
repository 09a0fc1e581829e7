#include "model/towers.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "format/minicpm_config.h"

namespace snug::towers {
namespace {

constexpr int64_t kMostLayers = 1024, kMostWidth = 1 << 16, kMostHeads = 1024, kMostSide = 4096;
constexpr double kEpsilon = 1e-6, kTheta = 10000;  // these stand in Qwen's code

// Reads which pairs of a head turn by time, by row and by column. transformers 5 has it in rope_parameters.
RopeAxes axes_of(const JsonObject& config, const ModelSpec& text) {
  const JsonObject holder = config.has("text_config") ? config.object("text_config") : config;
  const char* const key = holder.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const JsonObject rope = holder.object(key);
  const Json& section = rope.at("mrope_section");
  const int64_t pairs = text.layers.at(0).heads.dim / 2;
  const auto fail = [&] { rope.fail("mrope_section", fmt::format("three numbers above 0 whose sum is {}", pairs)); };
  if (!section.is_array() || section.size() != 3) fail();
  RopeAxes axes;
  for (size_t i = 0; i < 3; i++) {
    if (!section[i].is_number_integer() || section[i].get<int64_t>() < 1 || section[i].get<int64_t>() > pairs) fail();
    axes.pairs[i] = section[i].get<int64_t>();
  }
  if (axes.end_of(2) != pairs) fail();
  return axes;
}

// Describes what Qwen2-VL's and Qwen2.5-VL's towers have in common.
struct Sizes {
  int64_t width = 0, inner = 0, heads = 0, depth = 0, merge = 0;
};

NormSpec norm(std::string_view name, bool layer_norm, double epsilon = kEpsilon) {
  const std::string prefix(name);
  return layer_norm ? NormSpec{prefix + ".weight", epsilon, false, NormKind::Layer, prefix + ".bias"}
                    : NormSpec{prefix + ".weight", epsilon};
}

// Returns a block without its MLP.
LayerSpec block(const Sizes& sizes, bool layer_norm) {
  const int64_t width = sizes.width;
  return {.attention_norm = norm("norm1", layer_norm),
          .mlp_norm = norm("norm2", layer_norm),
          .heads = {sizes.heads, sizes.heads, width / sizes.heads},
          .qkv = {{{"attn.qkv", 3 * width}}, width, true},
          .o = {{{"attn.proj", width}}, width, true},
          .documents = Documents::Images};
}

// Puts a tower of such blocks, and its projector, before the text's layers.
void add_qwen_tower(ModelSpec& text, const JsonObject& config, const Sizes& sizes, std::vector<LayerSpec> blocks,
                    bool layer_norm, int64_t window) {
  const JsonObject vision = config.object("vision_config");
  const int64_t patch = vision.integer("patch_size", 1, kMostSide, 14),
                frames = vision.integer("temporal_patch_size", 1, 16, 2),
                colours = vision.integer(vision.has("in_chans") ? "in_chans" : "in_channels", 3, 3, 3);
  const int64_t pairs = sizes.width / sizes.heads / 4, joined = sizes.merge * sizes.merge;
  blocks.push_back({.mlp_norm = norm("ln_q", layer_norm),
                    .gate_up = {{{"mlp.0", joined * sizes.width}}, joined * sizes.width, true},
                    .down = {{{"mlp.2", text.hidden}}, joined * sizes.width, true},
                    .gate = Activation::Gelu,
                    .gated = false,
                    .joined_rows = joined});
  text.rope_axes = axes_of(config, text);
  text.tower = {.layers = std::ssize(blocks),
                .width = sizes.width,
                .patches = "patch_embed.proj",
                .patch_shape = {colours, frames, patch, patch},
                .prefix = "model.visual.",
                .layer_prefix = "model.visual.blocks.",
                .projector_prefix = "model.visual.merger.",
                .rope = {.theta = kTheta},
                .rope_axes = {{pairs, pairs}},
                .merge = sizes.merge,
                .window = window,
                .least_patches = joined};
  text.layers.insert(text.layers.begin(), blocks.begin(), blocks.end());
}

void expect_heads(const JsonObject& vision, const Sizes& sizes) {
  if (sizes.width % sizes.heads != 0 || sizes.width / sizes.heads % 4 != 0)
    vision.fail("num_heads", fmt::format("a number that divides {} into heads of a multiple of 4", sizes.width));
}

void expect_output(const JsonObject& vision, const ModelSpec& text, std::string_view key, int64_t fallback) {
  if (vision.integer(key, 1, kMostWidth, fallback) != text.hidden)
    vision.fail(key, fmt::format("{}, the width of the text model", text.hidden));
}

void expect_activation(const JsonObject& vision, const std::string& expected) {
  if (vision.string("hidden_act", expected) != expected) vision.fail("hidden_act", fmt::format("\"{}\"", expected));
}

}  // namespace

void qwen2_vl(ModelSpec& text, const JsonObject& config) {
  const JsonObject vision = config.object("vision_config");
  expect_output(vision, text, "hidden_size", 3584);
  expect_activation(vision, "quick_gelu");
  Sizes sizes{.width = vision.integer("embed_dim", 1, kMostWidth, 1280),
              .heads = vision.integer("num_heads", 1, kMostHeads, 16),
              .depth = vision.integer("depth", 1, kMostLayers, 32),
              .merge = vision.integer("spatial_merge_size", 1, 16, 2)};
  sizes.inner = static_cast<int64_t>(static_cast<double>(sizes.width) * vision.number("mlp_ratio", 0.1, 64, 4.0));
  expect_heads(vision, sizes);
  LayerSpec layer = block(sizes, true);
  layer.gate_up = {{{"mlp.fc1", sizes.inner}}, sizes.width, true};
  layer.down = {{{"mlp.fc2", sizes.width}}, sizes.inner, true};
  layer.gate = Activation::GeluQuick;
  layer.gated = false;
  add_qwen_tower(text, config, sizes, std::vector(static_cast<size_t>(sizes.depth), layer), true, 0);
}

void qwen2_5_vl(ModelSpec& text, const JsonObject& config) {
  const JsonObject vision = config.object("vision_config");
  expect_output(vision, text, "out_hidden_size", 3584);
  expect_activation(vision, "silu");
  const Sizes sizes{.width = vision.integer("hidden_size", 1, kMostWidth, 3584),
                    .inner = vision.integer("intermediate_size", 1, kMostWidth, 3420),
                    .heads = vision.integer("num_heads", 1, kMostHeads, 16),
                    .depth = vision.integer("depth", 1, kMostLayers, 32),
                    .merge = vision.integer("spatial_merge_size", 1, 16, 2)};
  expect_heads(vision, sizes);
  const int64_t patch = vision.integer("patch_size", 1, kMostSide, 14),
                window = vision.integer("window_size", 1, 1 << 20, 112) / patch;
  if (window < sizes.merge || window % sizes.merge != 0)
    vision.fail("window_size", fmt::format("a multiple of {} pixels", patch * sizes.merge));
  LayerSpec layer = block(sizes, false);
  layer.gate_up = {{{"mlp.gate_proj", sizes.inner}, {"mlp.up_proj", sizes.inner}}, sizes.width, true};
  layer.down = {{{"mlp.down_proj", sizes.width}}, sizes.inner, true};
  layer.documents = Documents::ImageWindows;
  std::vector<LayerSpec> blocks(static_cast<size_t>(sizes.depth), layer);
  const Json whole = vision.has("fullatt_block_indexes") ? vision.at("fullatt_block_indexes") : Json{7, 15, 23, 31};
  const auto is_block = [&](const Json& number) {
    return number.is_number_integer() && number.get<int64_t>() >= 0 && number.get<int64_t>() < sizes.depth;
  };
  if (!whole.is_array() || !std::ranges::all_of(whole, is_block))
    vision.fail("fullatt_block_indexes", fmt::format("a list of numbers below depth, {}", sizes.depth));
  for (const Json& number : whole) blocks[number.get<size_t>()].documents = Documents::Images;
  add_qwen_tower(text, config, sizes, std::move(blocks), false, window);
}

namespace {

constexpr double kMostAspect = 200;      // of pictures that the image room takes
constexpr int64_t kResamplerHead = 128;  // stands in the models' code

LayerSpec siglip_block(const Sizes& sizes, double epsilon) {
  const int64_t width = sizes.width;
  return {.attention_norm = norm("layer_norm1", true, epsilon),
          .mlp_norm = norm("layer_norm2", true, epsilon),
          .heads = {sizes.heads, sizes.heads, width / sizes.heads},
          .rope = false,
          .qkv = {{{"self_attn.q_proj", width}, {"self_attn.k_proj", width}, {"self_attn.v_proj", width}}, width, true},
          .o = {{{"self_attn.out_proj", width}}, width, true},
          .gate_up = {{{"mlp.fc1", sizes.inner}}, width, true},
          .down = {{{"mlp.fc2", width}}, sizes.inner, true},
          .gate = Activation::GeluTanh,
          .gated = false,
          .documents = Documents::Images};
}

// Returns the resampler that the models of MiniCPM-V have, over rows of `in` numbers.
LayerSpec resampler(int64_t queries, int64_t in, int64_t width) {
  const LinearPart projection{"attn.in_proj", 3 * width, "", "attn.in_proj_{}"}, last{"proj", width, "", "proj"};
  return {.heads = {width / kResamplerHead, width / kResamplerHead, kResamplerHead},
          .rope = false,
          .qkv = {{projection}, width, true},
          .o = {{{"attn.out_proj", width}}, width, true},
          .gate_up = {{{"kv_proj", width}}, in},
          .down = {.parts = {last}, .in = width, .transposed = true},
          .query_norm = norm("ln_q", true),
          .key_norm = norm("ln_kv", true),
          .attention_post_norm = norm("ln_post", true),
          .gated = false,
          .documents = Documents::Images,
          .queries = queries,
          .query = "query"};
}

void expect_whole_heads(const JsonObject& vision, std::string_view key, const Sizes& sizes) {
  if (sizes.width % sizes.heads != 0) vision.fail(key, fmt::format("a number that divides {}", sizes.width));
}

void expect_resampler_heads(const JsonObject& config, const ModelSpec& text) {
  if (text.hidden % kResamplerHead != 0)
    config.fail("hidden_size", fmt::format("a multiple of {}, the size of the resampler's heads", kResamplerHead));
}

}  // namespace

int64_t least_patches(int64_t resolution, int64_t patch, double aspect) {
  const auto patches = [&](double pixels) {
    return std::max(int64_t{1}, static_cast<int64_t>(std::nearbyint(pixels / static_cast<double>(patch))));
  };
  const auto side = static_cast<double>(resolution);
  if (side * side < aspect) return 1;  // heights are rounded down to 0
  int64_t least = patches(side) * patches(side);
  // A view whose width is r times its height is resolution / sqrt(r) high, rounded down, and that times r wide: of each
  // height the smallest r has the smallest width.
  for (double height = 1; height <= side * std::sqrt(aspect); height++) {
    const double r = std::max(1 / aspect, std::pow(side / (height + 1), 2));
    if (r <= aspect) least = std::min(least, patches(height) * patches(std::floor(height * r)));
  }
  return least;
}

void minicpm_v(ModelSpec& text, const JsonObject& config) {
  const JsonObject vision = config.object("vision_config");
  expect_activation(vision, "gelu_pytorch_tanh");
  expect_minicpm_2_5(config);
  if (config.boolean("drop_vision_last_layer", false)) config.fail("drop_vision_last_layer", "false");
  const Sizes sizes{.width = vision.integer("hidden_size", 1, kMostWidth, 768),
                    .inner = vision.integer("intermediate_size", 1, kMostWidth, 3072),
                    .heads = vision.integer("num_attention_heads", 1, kMostHeads, 12),
                    .depth = vision.integer("num_hidden_layers", 1, kMostLayers, 12)};
  expect_whole_heads(vision, "num_attention_heads", sizes);
  expect_resampler_heads(config, text);
  const int64_t patch = vision.integer("patch_size", 1, kMostSide, 32);
  if (config.integer("patch_size", 1, kMostSide, patch) != patch)
    config.fail("patch_size", fmt::format("{} as vision_config says", patch));
  const int64_t side = vision.integer("image_size", patch, int64_t{1} << 16, 224) / patch;
  const int64_t resolution = config.has("slice_config") ? read_slices(config.object("slice_config"), patch).resolution
                                                        : SliceConfig().resolution;
  std::vector<LayerSpec> layers(static_cast<size_t>(sizes.depth),
                                siglip_block(sizes, vision.number("layer_norm_eps", 1e-12, 1e-2, kEpsilon)));
  layers.push_back(resampler(config.integer("query_num", 1, 1 << 16, 96), sizes.width, text.hidden));
  const int64_t across = resolution / patch;
  TowerSpec& tower = text.tower;
  tower.layers = std::ssize(layers);
  tower.width = sizes.width;
  tower.patches = "embeddings.patch_embedding";
  tower.patch_bias = true;
  tower.patch_shape = {3, patch, patch};
  tower.prefix = "vpm.";
  tower.layer_prefix = "vpm.encoder.layers.";
  tower.projector_prefix = "resampler.";
  tower.rope.theta = kTheta;
  tower.position_rows = "vpm.embeddings.position_embedding.weight";
  tower.position_count = side * side;
  tower.position_side = side;
  tower.final_norm = norm("vpm.post_layernorm", true, layers[0].attention_norm.epsilon);
  tower.least_patches = least_patches(resolution, patch, kMostAspect);
  tower.square_patches = across * across;
  tower.longest_side = static_cast<int64_t>(static_cast<double>(across + 1) * std::sqrt(kMostAspect)) + 2;
  text.layers.insert(text.layers.begin(), layers.begin(), layers.end());
}

namespace {

constexpr std::string_view kEva = "eva02_enormous_patch14_clip_224";  // timm's, the one that OmniLMM's code makes

// An EVA block of timm's: what it adds is normed, and keys have no bias.
LayerSpec eva_block(const Sizes& sizes) {
  const int64_t width = sizes.width;
  return {.heads = {sizes.heads, sizes.heads, width / sizes.heads},
          .rope = false,
          .qkv = {.parts = {{"attn.qkv", 3 * width}},
                  .in = width,
                  .bias = true,
                  .biases = {{"attn.q_bias", width}, {"", width}, {"attn.v_bias", width}}},
          .o = {{{"attn.proj", width}}, width, true},
          .gate_up = {{{"mlp.fc1", sizes.inner}}, width, true},
          .down = {{{"mlp.fc2", width}}, sizes.inner, true},
          .attention_post_norm = norm("norm1", true),
          .mlp_post_norm = norm("norm2", true),
          .gate = Activation::Gelu,
          .gated = false,
          .documents = Documents::Images};
}

void expect_square(const JsonObject& config, std::string_view key, int64_t rows) {
  const int64_t side = side_of_square(rows);
  if (side * side != rows) config.fail(key, "the number of a square's places");
}

}  // namespace

void omnilmm(ModelSpec& text, const JsonObject& config) {
  if (const std::string tower = config.string("mm_vision_tower");
      tower != kEva && !tower.starts_with(fmt::format("{}.", kEva)))
    config.fail("mm_vision_tower", fmt::format("{}, alone or with the name of its training", kEva));
  if (!config.boolean("mm_use_im_start_end", true)) config.fail("mm_use_im_start_end", "true");
  const Json none = Json::object();
  const JsonObject vision =
      config.has("vision_config") ? config.object("vision_config") : JsonObject(none, "vision_config");
  Sizes sizes{.width = vision.integer("embed_dim", 1, kMostWidth, 1792),
              .heads = vision.integer("num_heads", 1, kMostHeads, 16),
              .depth = vision.integer("depth", 2, kMostLayers, 64)};
  sizes.inner =
      static_cast<int64_t>(static_cast<double>(sizes.width) * vision.number("mlp_ratio", 0.1, 64, 15360.0 / 1792));
  expect_whole_heads(vision, "num_heads", sizes);
  expect_resampler_heads(config, text);
  const int64_t patch = vision.integer("patch_size", 1, kMostSide, 14),
                table = vision.integer("img_size", patch, kMostSide, 224) / patch,
                queries = config.integer("num_query", 1, 1 << 16),
                size = config.integer("image_size", patch, kMostSide);
  expect_square(config, "num_query", queries);
  const int64_t side = size / patch, grid = side_of_square(queries);
  if (size % patch != 0 || side < std::max(table, grid))
    config.fail("image_size",
                fmt::format("a multiple of a patch of {}, and at least {}, as tables of positions are made "
                            "larger",
                            patch, std::max(table, grid) * patch));
  // The code takes the result of the last block but one.
  std::vector<LayerSpec> layers(static_cast<size_t>(sizes.depth - 1), eva_block(sizes));
  layers.push_back(resampler(queries, sizes.width, text.hidden));
  layers.back().query_places = "pos_embed";
  TowerSpec& tower = text.tower;
  tower.layers = std::ssize(layers);
  tower.width = sizes.width;
  tower.patches = "patch_embed.proj";
  tower.patch_bias = true;
  tower.patch_shape = {3, patch, patch};
  tower.prefix = "model.vision_tower.";
  tower.layer_prefix = "model.vision_tower.blocks.";
  tower.projector_prefix = "model.resampler.";
  tower.position_rows = "model.vision_tower.pos_embed";
  tower.position_count = 1 + table * table;
  tower.image_side = side;
  tower.class_row = "model.vision_tower.cls_token";
  tower.final_norm = norm("model.vision_tower.norm", true);
  tower.least_patches = side * side;
  tower.square_patches = side * side;
  tower.longest_side = side;
  text.layers.insert(text.layers.begin(), layers.begin(), layers.end());
}

}  // namespace snug::towers
