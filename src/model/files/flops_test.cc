#include "model/files/flops.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace tdock::model {
namespace {

struct Sizes {
  int64_t vocabulary = 0, hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0;
};

ModelConfig Sized(const Sizes& sizes) {
  ModelConfig config;
  config.vocab_size = sizes.vocabulary;
  config.hidden_size = sizes.hidden;
  config.intermediate_size = sizes.intermediate;
  config.num_layers = sizes.layers;
  config.num_heads = sizes.heads;
  config.num_kv_heads = sizes.kv_heads;
  config.head_dim = sizes.head_dim;
  return config;
}

double Training(const ModelConfig& config, std::initializer_list<int64_t> lengths) {
  double flops = 0;
  for (const int64_t length : lengths) flops += 3 * ForwardFlops(config, length);
  return flops;
}

// The numbers of verl's tests/utils/test_flops_counter.py.
TEST(Flops, OfTrainingAreThoseOfVerl) {
  const struct {
    const char* model;
    Sizes sizes;
    double mixed, equal;
  } kModels[] = {
      {"Llama-2-7B", {32000, 4096, 11008, 32, 32, 32, 128}, 153555818250240, 575955114393600},
      {"Qwen2.5-7B", {152064, 3584, 18944, 28, 28, 4, 128}, 170388331954176, 622070178250752},
      {"Qwen3-8B", {151936, 4096, 12288, 36, 32, 8, 128}, 185867930959872, 692924253732864},
      {"Mistral-Small-24B", {131072, 5120, 32768, 40, 32, 8, 128}, 517715357859840, 1836871613153280},
  };
  for (const auto& model : kModels) {
    const ModelConfig config = Sized(model.sizes);
    EXPECT_EQ(Training(config, {512, 1024, 2048}), model.mixed) << model.model;
    EXPECT_EQ(Training(config, {4096, 4096, 4096}), model.equal) << model.model;
  }
}

TEST(Flops, FollowFromTheFormOfTheModel) {
  ModelConfig config =
      Sized({.vocabulary = 10, .hidden = 4, .intermediate = 8, .layers = 2, .heads = 2, .kv_heads = 1, .head_dim = 2});
  // Of a layer: queries, keys, values and output 4·(4 + 2 + 2 + 4), mlp 3·4·8; embedding and head 2·10·4.
  EXPECT_EQ(ForwardFlops(config, 3), 2 * (2 * (48 + 96) + 80) * 3 + 4 * 2 * 3 * 3 * 4);
  config.gated_mlp = false;
  EXPECT_EQ(ForwardFlops(config, 3), 2 * (2 * (48 + 64) + 80) * 3 + 4 * 2 * 3 * 3 * 4);
  config.windows = {0, 2};
  EXPECT_EQ(ForwardFlops(config, 3), 2 * (2 * (48 + 64) + 80) * 3 + 4 * (3 * 3 + 3 * 2) * 4);
  config.head = Head::kValue;
  EXPECT_EQ(ForwardFlops(config, 3), 2 * (2 * (48 + 64) + 44) * 3 + 4 * (3 * 3 + 3 * 2) * 4);
  config.embedding_size = 2;
  EXPECT_EQ(ForwardFlops(config, 3), 2 * (2 * (48 + 64) + 16 + 22) * 3 + 4 * (3 * 3 + 3 * 2) * 4);
}

TEST(Flops, OfTrainingAreThoseOfDeepSpeedChat) {
  const ModelConfig config = Sized({.vocabulary = 50272, .hidden = 2048, .layers = 24});
  EXPECT_NEAR(16 * DeepSpeedChatFlops(config, 512, false), 6.564294e13, 5e6);
  EXPECT_NEAR(16 * DeepSpeedChatFlops(config, 512, true), 8.752392e13, 5e6);
}

}  // namespace
}  // namespace tdock::model
