// Faults that other systems have or had, each a test that whole runs here do not have it. Numbers are those of
// DeepSpeed-Chat's list in docs/algorithms.md; the mathematics' own are in trainer/algo/faults_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/decoder/decoder.h"
#include "model/decoder/testing/models.h"
#include "trainer/recipes/testing/small_run.h"

namespace tdock::trainer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Fault 3: answers to train on are generated greedily, so that nothing is explored, and it is not known how likely they
// were. Here they are drawn at the temperature by the seed, and training finds them as likely as the rollout recorded.
TEST(Faults, RolloutsAreGreedy) {
  const auto entropy_and_rewards = [](const std::string& temperature, const std::string& seed) {
    SmallRun run("grpo", {"rollout.temperature=" + temperature, "seed=" + seed, "reward.regex.weight=1",
                          "reward.regex.pattern=7", "trainer.total_training_steps=1"});
    EXPECT_TRUE(run.Train().ok());
    const nlohmann::json step = run.Metrics().back();
    // Logits are divided by the temperature, and so are their rounding errors.
    const double rounding = 1e-5 / std::min(1.0, std::stod(temperature));
    EXPECT_LE(step["rollout_corr/max_abs_diff"].get<double>(), rounding) << "temperature " << temperature;
    return std::pair(step["actor/entropy"].get<double>(), step["rollout_corr/rollout_log_ppl"].get<double>());
  };
  const auto cold = entropy_and_rewards("0.01", "1"), warm = entropy_and_rewards("1.3", "1");
  EXPECT_GT(warm.first, 10 * cold.first);
  EXPECT_GT(warm.second, 10 * cold.second);
  EXPECT_EQ(entropy_and_rewards("1.3", "1"), warm) << "the same seed";
  EXPECT_NE(entropy_and_rewards("1.3", "2"), warm) << "another seed";
}

// Fault 7: weights whose names have changed stay random, and nobody is told. Here a run refuses them and lists both
// names.
TEST(Faults, RenamedWeightsStayRandom) {
  SmallRun first("sft", {"trainer.total_training_steps=1"});
  ASSERT_TRUE(first.Train().ok());
  const std::string model = first.run_dir() + "/checkpoint", file = model + "/model.safetensors";
  std::string bytes = *Env::Real().ReadFile(file);
  const std::string own = "model.norm.weight", renamed = "model.nerm.weight";
  const size_t at = bytes.find('"' + own + '"');
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at + 1, own.size(), renamed);
  ASSERT_TRUE(WriteFileAtomically(Env::Real(), file, bytes).ok());
  for (const char* recipe : {"sft", "grpo"}) {
    SmallRun second(recipe, {"model.path=" + model});
    EXPECT_THAT(std::string(second.Train().status().message()),
                AllOf(HasSubstr("missing weights: " + own), HasSubstr("unexpected weights: " + renamed)))
        << recipe;
    EXPECT_FALSE(Env::Real().Exists(second.run_dir() + "/checkpoint")) << recipe;
  }
}

std::vector<std::pair<std::string, std::string>> BytesOfWeights(const model::Decoder& decoder) {
  std::vector<std::pair<std::string, std::string>> bytes;
  for (const auto& [name, weight] : decoder.NamedWeights()) {
    bytes.emplace_back(name, std::string(static_cast<const char*>(weight.const_data_ptr()), weight.nbytes()));
  }
  return bytes;
}

// Fault 9: adapters are added to the weights for each rollout and subtracted after it, and in low precision a little
// remains each time. Here the merged model is another one: however often it is made, the weights keep their bits.
TEST(Faults, WeightsDriftWhenAdaptersAreMerged) {
  const model::ModelConfig config = model::TinyConfig(model::Architecture::kLlama, /*tied_head=*/true);
  model::Decoder decoder = model::Decoder::Random(config, 1, at::kCPU, at::kBFloat16);
  const auto before = BytesOfWeights(decoder);
  ASSERT_TRUE(decoder.AddAdapters({.rank = 4}, 1).ok());
  for (auto& [name, adapter] : decoder.NamedAdapters()) adapter.fill_(0.01);
  const auto merged = BytesOfWeights(decoder.Merged());
  EXPECT_NE(merged, before);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(BytesOfWeights(decoder.Merged()), merged);
  EXPECT_EQ(BytesOfWeights(decoder), before);
}

}  // namespace
}  // namespace tdock::trainer
