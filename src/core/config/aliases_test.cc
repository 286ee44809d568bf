// Other names of keys and values.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/base/testing/fails.h"
#include "core/config/spec.h"

namespace tdock::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Named {
  double lr = 1.0;
  double low = 0.2;
  double high = 0.3;
  int64_t n = 1;
  std::string type = "k1";
};

Spec SpecWithAliases(Named& c) {
  Spec spec;
  spec.Float("actor.optim.lr", &c.lr, "Learning rate.").MoreThan(0);
  spec.Float("actor.clip_low", &c.low, "Lower.");
  spec.Float("actor.clip_high", &c.high, "Upper.");
  spec.Int("rollout.n", &c.n, "Samples.").AtLeast(1);
  spec.Choice("actor.type", &c.type, {{"k1", std::string("k1")}, {"k3", std::string("k3")}}, "Estimator.");
  spec.Check({"actor.optim.lr", "rollout.n"}, [&c]() -> std::vector<std::string> {
    if (c.lr * static_cast<double>(c.n) < 100) return {};
    return {"too large together"};
  });
  spec.Alias("rl_config.samples", "rollout.n");
  spec.Alias("actor.rate", "actor.optim.lr");
  spec.AliasSection("whole.actor", "actor");
  spec.AliasSection("whole.rollout", "rollout");
  spec.Spread("actor.clip", {"actor.clip_low", "actor.clip_high"});
  spec.AliasValue("actor.type", "low_var_kl", "k3");
  return spec;
}

std::vector<std::string> AliasViolations(absl::string_view yaml, std::vector<std::string> overrides = {}) {
  Named c;
  const absl::Status loaded = Load(SpecWithAliases(c), yaml, "t.yaml", overrides);
  if (loaded.ok()) return {};
  return absl::StrSplit(loaded.message(), '\n');
}

Named LoadedByAlias(absl::string_view yaml, std::vector<std::string> overrides = {}) {
  Named c;
  EXPECT_EQ(Load(SpecWithAliases(c), yaml, "t.yaml", overrides), absl::OkStatus());
  return c;
}

TEST(Alias, StandsForItsKeyInAFileAndOnTheCommandLine) {
  EXPECT_EQ(LoadedByAlias("rl_config: {samples: 5}").n, 5);
  EXPECT_EQ(LoadedByAlias("", {"rl_config.samples=6"}).n, 6);
  EXPECT_EQ(LoadedByAlias("rl_config: {samples: 5}", {"rollout.n=7"}).n, 7);
  EXPECT_EQ(LoadedByAlias("rollout: {n: 5}", {"rl_config.samples=7"}).n, 7);
}

TEST(Alias, OfASectionHoldsForAllThatIsInIt) {
  EXPECT_EQ(LoadedByAlias("whole: {actor: {optim: {lr: 0.5}}, rollout: {n: 3}}").lr, 0.5);
  EXPECT_EQ(LoadedByAlias("whole.actor.rate: 0.25").lr, 0.25) << "an alias in an aliased section";
  EXPECT_EQ(LoadedByAlias("whole.actor: {clip: 0.5}").high, 0.5);
}

TEST(Alias, BesideItsKeyIsAViolationThatNamesBothPlaces) {
  EXPECT_THAT(AliasViolations("rollout: {n: 2}\nwhole: {rollout: {n: 3}}\n"),
              ElementsAre(Mentions({"t.yaml:2: whole.rollout.n (rollout.n here)", "rollout.n (t.yaml:1)"})));
  EXPECT_THAT(AliasViolations("", {"rl_config.samples=2", "rollout.n=3"}),
              ElementsAre(Mentions({"command line: rollout.n:", "rl_config.samples (command line)"})));
  EXPECT_EQ(LoadedByAlias("rollout: {n: 2}\nwhole: {rollout: {n: 2}}\n").n, 2) << "they agree";
  EXPECT_EQ(LoadedByAlias("rollout: {n: 2}\nwhole: {rollout: {n: null}}\n").n, 2) << "a null gives nothing";
  EXPECT_EQ(LoadedByAlias("rollout: {n: null}\nwhole: {rollout: {n: 2}}\n").n, 2);
}

TEST(Alias, MessagesNameWhatWasWrittenAndWhatItIsHere) {
  EXPECT_THAT(AliasViolations("whole:\n  actor: {rate: 0}\n", {"rl_config.samples=x"}),
              ElementsAre(Mentions({"t.yaml:2: whole.actor.rate (actor.optim.lr here):", "\"0\"", "number > 0"}),
                          Mentions({"command line: rl_config.samples (rollout.n here):", "\"x\"", "integer ≥ 1"})));
  EXPECT_THAT(AliasViolations("whole.rollout.n: 200\n"),
              ElementsAre(Mentions({"t.yaml:1:", "actor.optim.lr = 1.0 (default)",
                                    "whole.rollout.n (rollout.n here) = 200", "too large together"})));
  EXPECT_THAT(AliasViolations("whole: {rollout: 5}\n"),
              ElementsAre(Mentions({"t.yaml:1: whole.rollout:", "\"5\"", "section", "whole.rollout.n"})));
}

TEST(Alias, IsSuggestedForAMistypedOne) {
  EXPECT_THAT(AliasViolations("", {"rl_config.sampels=2"}),
              ElementsAre(Mentions({"rl_config.sampels", "rl_config.samples?"})));
  EXPECT_THAT(AliasViolations("whole.actor.optim.rl: 2"),
              ElementsAre(Mentions({"whole.actor.optim.rl", "whole.actor.optim.lr?"})));
  EXPECT_THAT(AliasViolations("whole.actor.zzzzzz: 2"),
              ElementsAre(Mentions(
                  {"t.yaml:1: whole.actor.zzzzzz:", "unknown key", "optim, clip_low, clip_high, type in actor"})));
}

TEST(Alias, IsNotDumped) {
  Named c;
  const Spec spec = SpecWithAliases(c);
  ASSERT_EQ(Load(spec, "whole: {actor: {rate: 0.5, type: low_var_kl}}", "t.yaml", {}), absl::OkStatus());
  EXPECT_EQ(Dump(spec),
            "actor:\n  optim:\n    lr: 0.5\n  clip_low: 0.2\n  clip_high: 0.3\n  type: k3\nrollout:\n  n: 1\n");
}

TEST(AliasValue, StandsForAValue) {
  EXPECT_EQ(LoadedByAlias("actor.type: low_var_kl").type, "k3");
  EXPECT_EQ(LoadedByAlias("", {"actor.type=low_var_kl"}).type, "k3");
  EXPECT_THAT(AliasViolations("actor.type: low_var"),
              ElementsAre(Mentions({"t.yaml:1: actor.type:", "\"low_var\"", "k1 or k3"})));
}

TEST(RefuseValue, SaysWhyAnotherProgramsValueIsNoneHere) {
  std::string type = "a";
  Spec spec;
  spec.Choice("type", &type, {{"a", std::string("a")}, {"b", std::string("b")}}, "Type.");
  spec.RefuseValue("type", "plateau", "it follows a metric");
  EXPECT_THAT(std::string(Load(spec, "type: Plateau", "t.yaml", {}).message()),
              Mentions({"t.yaml:1: type:", "\"Plateau\"", "a or b", "it follows a metric"}));
  EXPECT_THAT(std::string(Load(spec, "type: c", "t.yaml", {}).message()), testing::Not(HasSubstr("metric")));
}

TEST(Spread, GivesEachKeyThatIsNotGivenItself) {
  EXPECT_EQ(LoadedByAlias("actor.clip: 0.5").low, 0.5);
  EXPECT_EQ(LoadedByAlias("actor.clip: 0.5").high, 0.5);
  EXPECT_EQ(LoadedByAlias("actor: {clip: 0.5, clip_high: 0.9}").high, 0.9);
  EXPECT_EQ(LoadedByAlias("actor: {clip: 0.5, clip_high: null}").high, 0.5);
  EXPECT_EQ(LoadedByAlias("actor: {clip: null}").high, 0.3);
  EXPECT_EQ(LoadedByAlias("actor: {clip: [0.5, 0.6]}").low, 0.5);
  EXPECT_EQ(LoadedByAlias("actor: {clip: [0.5, 0.6]}").high, 0.6);
  EXPECT_EQ(LoadedByAlias("actor: {clip: 0.5, clip_low: 0.1}", {"actor.clip=0.7"}).high, 0.7);
}

TEST(Spread, RefusesWhatItsKeysRefuse) {
  EXPECT_THAT(AliasViolations("actor.clip: x"),
              ElementsAre(Mentions({"t.yaml:1: actor.clip (actor.clip_low here):", "\"x\"", "number"}),
                          Mentions({"t.yaml:1: actor.clip (actor.clip_high here):", "\"x\"", "number"})));
  EXPECT_THAT(AliasViolations("actor.clip: [1, 2, 3]"),
              ElementsAre(Mentions({"t.yaml:1: actor.clip:", "list of 3", "actor.clip_low, actor.clip_high"})));
}

struct Combined {
  std::string recompute = "nothing";
  double kl = 0.1;
  bool whiten = false;
};

Spec SpecWithDerived(Combined& c) {
  Spec spec;
  spec.Choice("model.recompute", &c.recompute, {{"nothing", "nothing"}, {"layers", "layers"}, {"mlp", "mlp"}}, "");
  spec.Float("actor.kl", &c.kl, "").AtLeast(0);
  spec.Bool("whiten", &c.whiten, "");
  spec.AliasSection("whole.model", "model");
  spec.Derive("model.recompute", {"model.granularity", "model.modules"},
              [](std::span<const std::string> given) -> std::optional<std::string> {
                if (given[0] == "selective") return given[1].empty() ? "layers" : given[1];
                return given[0] == "none" ? std::nullopt : std::optional(given[0]);
              });
  spec.Derive("actor.kl", {"actor.kl", "actor.use_kl"},
              [](std::span<const std::string> given) -> std::optional<std::string> {
                return given[1] == "false" ? std::optional<std::string>("0") : std::nullopt;
              });
  spec.Derive("whiten", {"whiten", "whole"}, [](std::span<const std::string> given) -> std::optional<std::string> {
    return given[0].empty() ? std::optional<std::string>("true") : std::nullopt;
  });
  return spec;
}

Combined Derived(absl::string_view yaml, std::vector<std::string> overrides = {}) {
  Combined c;
  EXPECT_EQ(Load(SpecWithDerived(c), yaml, "t.yaml", overrides), absl::OkStatus()) << yaml;
  return c;
}

std::vector<std::string> DerivedViolations(absl::string_view yaml, std::vector<std::string> overrides = {}) {
  Combined c;
  const absl::Status loaded = Load(SpecWithDerived(c), yaml, "t.yaml", overrides);
  if (loaded.ok()) return {};
  return absl::StrSplit(loaded.message(), '\n');
}

TEST(Derive, GivesAKeyWhatOtherKeysSayTogether) {
  EXPECT_EQ(Derived("model: {granularity: layers}").recompute, "layers");
  EXPECT_EQ(Derived("whole: {model: {granularity: selective, modules: [mlp]}}").recompute, "mlp");
  EXPECT_EQ(Derived("model.granularity: selective", {"model.modules=mlp"}).recompute, "mlp");
  EXPECT_EQ(Derived("model: {granularity: \"${model.modules}\", modules: mlp}").recompute, "mlp") << "a reference";
  EXPECT_EQ(Derived("model: {granularity: null, modules: null}").recompute, "nothing");
  EXPECT_EQ(Derived("model: {granularity: none, recompute: mlp}").recompute, "mlp");
}

TEST(Derive, MayActOnTheKeyItself) {
  EXPECT_EQ(Derived("actor: {kl: 0.5, use_kl: false}").kl, 0);
  EXPECT_EQ(Derived("actor: {kl: 0.5, use_kl: true}").kl, 0.5);
  EXPECT_EQ(Derived("actor: {use_kl: false}", {"actor.kl=0.5"}).kl, 0.5) << "the command line counts more";
  EXPECT_EQ(Derived("actor: {kl: 0.5}", {"actor.use_kl=false"}).kl, 0);
}

TEST(Derive, KnowsWhetherASectionIsGiven) {
  EXPECT_TRUE(Derived("whole: {model: {recompute: mlp}}").whiten);
  EXPECT_FALSE(Derived("model: {recompute: mlp}").whiten);
  EXPECT_FALSE(Derived("whole: {model: {recompute: mlp}}\nwhiten: false\n").whiten);
}

TEST(Derive, IsRefusedBesideAnotherValueOfTheKeyAndForWrongValues) {
  EXPECT_EQ(Derived("model: {recompute: mlp, granularity: mlp}").recompute, "mlp") << "they agree";
  EXPECT_EQ(Derived("model: {granularity: mlp}", {"model.recompute=layers"}).recompute, "layers");
  EXPECT_THAT(
      DerivedViolations("model:\n  recompute: mlp\n  granularity: layers\n"),
      ElementsAre(Mentions({"t.yaml:3: model.granularity (model.recompute here):", "model.recompute (t.yaml:2)"})));
  EXPECT_THAT(DerivedViolations("whole: {model: {granularity: some}}"),
              ElementsAre(Mentions({"t.yaml:1: whole.model.granularity (model.recompute here):", "\"some\"",
                                    "nothing, layers or mlp"})));
  EXPECT_THAT(DerivedViolations("model.granularity: ${no.such.key}"),
              ElementsAre(Mentions({"t.yaml:1: model.granularity (model.recompute here):", "${no.such.key}"})));
}

TEST(UnknownKey, InTheWrongSectionIsKnownByItsLastWord) {
  int64_t n = 1;
  Spec spec;
  spec.Int("rollout.n", &n, "");
  spec.Int("rollout.temperature", &n, "");
  spec.Alias("num_generations", "rollout.n");
  spec.Refuse("accumulation", "set rollout.n instead");
  EXPECT_THAT(
      Load(spec, "trainer: {num_generations: 2, accumulation: 2}", "t.yaml", {}).message(),
      Mentions({"trainer.num_generations: ", "rollout.n?\n", "trainer.accumulation: ", "set rollout.n instead"}));
}

}  // namespace
}  // namespace tdock::config
