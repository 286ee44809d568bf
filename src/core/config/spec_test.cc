#include "core/config/spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/base/rng.h"
#include "core/base/testing/fails.h"

namespace tdock::config {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

enum class Kl { kK1, kK2, kK3 };

struct Trainer {
  int64_t train_batch = 128;
  int64_t mini_batch = 32;
  int64_t threads = 1;
  double lr = 4e-4;
  double clip = 0.2;
  double cap = 1.0;
  bool shuffle = true;
  Kl kl = Kl::kK3;
  std::string device = "cpu";
  std::string out = "runs";
};

Spec MakeSpec(Trainer& t) {
  Spec spec;
  spec.Int("data.train_batch_size", &t.train_batch, "Prompts per step.").AtLeast(1);
  spec.Int("actor.ppo_mini_batch_size", &t.mini_batch, "Mini-batch.").AtLeast(1).AtMost(4096);
  spec.Int("trainer.threads", &t.threads, "Threads.").AtLeast(1);
  spec.Float("actor.optim.lr", &t.lr, "Learning rate.").MoreThan(0);
  spec.Float("actor.clip_ratio", &t.clip, "Clip of the ratio.").AtLeast(0).LessThan(1);
  spec.Float("actor.cap", &t.cap, "Bound on the weights.");
  spec.Bool("data.shuffle", &t.shuffle, "Shuffle the prompts.");
  spec.Choice("actor.kl_loss_type", &t.kl, {{"k1", Kl::kK1}, {"k2", Kl::kK2}, {"k3", Kl::kK3}}, "Estimator | KL.");
  spec.String("trainer.device", &t.device, "Where to run.").NotEmpty();
  spec.String("trainer.out", &t.out, "Run directory.");
  spec.Check({"actor.ppo_mini_batch_size", "data.train_batch_size"}, [&t]() -> std::vector<std::string> {
    if (t.train_batch % t.mini_batch == 0) return {};
    return {"the mini-batch size must divide the batch size"};
  });
  return spec;
}

std::vector<std::string> Violations(absl::string_view yaml, std::vector<std::string> overrides = {},
                                    const Limits& limits = {}) {
  Trainer t;
  const Spec spec = MakeSpec(t);
  const absl::Status loaded = Load(spec, yaml, "t.yaml", overrides, {.limits = limits});
  if (loaded.ok()) return {};
  EXPECT_EQ(loaded.code(), absl::StatusCode::kInvalidArgument);
  return absl::StrSplit(loaded.message(), '\n');
}

TEST(Load, FillsTheFieldsAndLeavesDefaultsWhereNothingIsGiven) {
  Trainer t;
  const Spec spec = MakeSpec(t);
  const std::string yaml = R"(
# A comment.
data: {train_batch_size: 64, shuffle: false}
actor:
  ppo_mini_batch_size: 16
  optim:
    lr: 1e-3
  kl_loss_type: k1
trainer:
  device: cuda:1
  out: "a b"
)";
  ASSERT_EQ(Load(spec, yaml, "t.yaml", {}), absl::OkStatus());
  EXPECT_EQ(t.train_batch, 64);
  EXPECT_EQ(t.mini_batch, 16);
  EXPECT_FALSE(t.shuffle);
  EXPECT_EQ(t.lr, 1e-3);
  EXPECT_EQ(t.kl, Kl::kK1);
  EXPECT_EQ(t.device, "cuda:1");
  EXPECT_EQ(t.out, "a b");
  EXPECT_EQ(t.clip, 0.2);
  EXPECT_EQ(t.threads, 1);
}

TEST(Load, AnEmptyTextAndEmptySectionsChangeNothing) {
  for (const char* yaml : {"", "# nothing\n", "---\n", "actor:\ndata: {}\n", "~"}) {
    EXPECT_THAT(Violations(yaml), ElementsAre()) << yaml;
  }
}

TEST(Load, TheCommandLineCountsMoreThanTheFileAndTheLastMost) {
  Trainer t;
  const Spec spec = MakeSpec(t);
  const std::vector<std::string> overrides = {"trainer.threads=2", "trainer.threads=3", "trainer.out=x=y: [z",
                                              "actor.kl_loss_type=k2"};
  ASSERT_EQ(Load(spec, "trainer: {threads: 7}", "t.yaml", overrides), absl::OkStatus());
  EXPECT_EQ(t.threads, 3);
  EXPECT_EQ(t.out, "x=y: [z") << "a value on the command line is no YAML";
  EXPECT_EQ(t.kl, Kl::kK2);
}

TEST(Load, ANullLeavesTheDefault) {
  Trainer t;
  const Spec spec = MakeSpec(t);
  const std::string yaml =
      "data: {train_batch_size: null, shuffle: ~}\nactor:\n  kl_loss_type:\n  cap: 5\ntrainer.out: x\n";
  ASSERT_EQ(Load(spec, yaml, "t.yaml", std::vector<std::string>{"actor.cap=null", "trainer.out='null'"}),
            absl::OkStatus());
  EXPECT_EQ(t.train_batch, 128);
  EXPECT_TRUE(t.shuffle);
  EXPECT_EQ(t.kl, Kl::kK3);
  EXPECT_EQ(t.cap, 1.0) << "the null of the command line stands for the default, not for what the file says";
  EXPECT_EQ(t.out, "null");
}

TEST(Load, AValueThatIsOverriddenIsNotLookedAt) {
  EXPECT_THAT(Violations("trainer:\n  threads: ???\n  device: ''\nactor.cap: {x: 1}\n",
                         {"trainer.threads=2", "trainer.device=cpu", "actor.cap=1"}),
              ElementsAre());
  EXPECT_THAT(Violations("trainer.threads: ???\n"),
              ElementsAre(Mentions({"t.yaml:1: trainer.threads:", "???", "trainer.threads=…"})));
}

TEST(Load, DottedKeysInAFileAreTheSameAsSections) {
  Trainer t;
  const Spec spec = MakeSpec(t);
  ASSERT_EQ(Load(spec, "actor.optim.lr: 0.5\nactor: {clip_ratio: 0.1}\n", "t.yaml", {}), absl::OkStatus());
  EXPECT_EQ(t.lr, 0.5);
  EXPECT_EQ(t.clip, 0.1);
}

TEST(Load, ReportsAllViolationsTogetherOnePerLine) {
  const std::string yaml = R"(data:
  train_batch_size: 1.5
  shufle: true
actor:
  optim: {lr: 0}
  kl_loss_type: k4
)";
  EXPECT_THAT(Violations(yaml, {"trainer.threads=0", "trainer.devise=cpu", "seed"}),
              ElementsAre(Mentions({"t.yaml:2: data.train_batch_size:", "\"1.5\"", "integer ≥ 1"}),
                          Mentions({"t.yaml:3: data.shufle:", "unknown key", "data.shuffle?"}),
                          Mentions({"t.yaml:5: actor.optim.lr:", "\"0\"", "number > 0"}),
                          Mentions({"t.yaml:6: actor.kl_loss_type:", "\"k4\"", "k1, k2 or k3"}),
                          Mentions({"command line: trainer.threads:", "\"0\"", "integer ≥ 1"}),
                          Mentions({"command line: trainer.devise:", "unknown key", "trainer.device?"}),
                          Mentions({"command line: \"seed\"", "key=value", "data.train_batch_size=…"})));
}

TEST(Load, ReportsAConstraintOverSeveralKeysWithTheirValuesAndPlace) {
  EXPECT_THAT(
      Violations("actor:\n  ppo_mini_batch_size: 48\ntrainer: {threads: x}\n"),
      ElementsAre(Mentions({"t.yaml:3: trainer.threads:", "\"x\"", "integer ≥ 1"}),
                  Mentions({"t.yaml:2:", "actor.ppo_mini_batch_size = 48", "data.train_batch_size = 128 (default)",
                            "the mini-batch size must divide the batch size"})));
  EXPECT_THAT(Violations("actor: {ppo_mini_batch_size: 48}\n", {"data.train_batch_size=none"}).size(), 1u)
      << "a constraint over a faulty key says nothing new";
  EXPECT_THAT(Violations("", {"data.train_batch_size=100"}),
              ElementsAre(HasSubstr("command line: actor.ppo_mini_batch_size = 32 (default), data.train_batch_size")));
}

TEST(Load, RefusesWhatIsNotAnInteger) {
  for (const char* text : {"1.5", "abc", "\"5\"", "1e3", "0x10", "010", "1_000", "+-5", "-", "9223372036854775808",
                           "true", "[5]", "{a: 5}", ".inf", "5 6", "٣"}) {
    Trainer t;
    const Spec spec = MakeSpec(t);
    const absl::Status loaded = Load(spec, absl::StrCat("data: {train_batch_size: ", text, "}"), "t.yaml", {});
    EXPECT_THAT(loaded.message(), Mentions({"data.train_batch_size", "integer ≥ 1"})) << text;
    EXPECT_EQ(t.train_batch, 128);
  }
  EXPECT_THAT(Violations("data.train_batch_size: 9223372036854775808"), ElementsAre(HasSubstr("≥ 1 in 64 bits")));
  EXPECT_THAT(Violations("data.train_batch_size: 010"), ElementsAre(Mentions({"≥ 1", "leading zeros"})));
  EXPECT_THAT(Violations("actor: {ppo_mini_batch_size: 4097}"), ElementsAre(HasSubstr("integer ≥ 1 and ≤ 4096")));
}

TEST(Load, RefusesWhatIsNotAFiniteNumber) {
  for (const char* text : {".nan", ".inf", "-.inf", "nan", "inf", "1e999", "1e-999", "0.1.2", "1,5", "0x1p3", "\"0.1\"",
                           "ten", "-0.1", "1", "- 0.1", "--0.1", "+-0.1", "."}) {
    Trainer t;
    const Spec spec = MakeSpec(t);
    const absl::Status loaded = Load(spec, "", "t.yaml", std::vector{absl::StrCat("actor.clip_ratio=", text)});
    EXPECT_THAT(loaded.message(), Mentions({"actor.clip_ratio", "number ≥ 0 and < 1"})) << text;
    EXPECT_EQ(t.clip, 0.2);
  }
}

TEST(Load, ReadsNumbersAsYamlWritesThem) {
  const std::pair<const char*, double> numbers[] = {{"1e-4", 1e-4}, {"1", 1},  {"+2.5", 2.5}, {"-3", -3},
                                                    {".5", 0.5},    {"5.", 5}, {"1E+2", 100}};
  for (const auto& [text, value] : numbers) {
    Trainer t;
    const Spec spec = MakeSpec(t);
    ASSERT_EQ(Load(spec, absl::StrCat("actor.cap: ", text), "t.yaml", {}), absl::OkStatus()) << text;
    EXPECT_EQ(t.cap, value);
  }
}

TEST(Load, RefusesWhatIsNotABoolean) {
  for (const char* text : {"yes", "on", "1", "\"true\"", "tRue"}) {
    EXPECT_THAT(Violations(absl::StrCat("data.shuffle: ", text)),
                ElementsAre(Mentions({"data.shuffle", "true", "false"})))
        << text;
  }
}

TEST(Load, NamesASectionWhereAValueBelongsOnceAndAValueWhereASectionBelongs) {
  EXPECT_THAT(Violations("actor:\n  clip_ratio:\n    low: 1\n    high: {x: 2}\n  kl_loss_type: [k1]\n"),
              ElementsAre(Mentions({"t.yaml:2: actor.clip_ratio:", "section", "number ≥ 0 and < 1"}),
                          Mentions({"t.yaml:5: actor.kl_loss_type:", "a list", "k1, k2 or k3"})));
  EXPECT_THAT(Violations("actor: 3\ndata: [1, {a: 2}]\n", {"trainer=x"}),
              ElementsAre(Mentions({"t.yaml:1: actor:", "\"3\"", "section", "actor.ppo_mini_batch_size"}),
                          Mentions({"t.yaml:2: data:", "nested list", "section", "data.train_batch_size"}),
                          Mentions({"command line: trainer:", "\"x\"", "section", "trainer.threads"})));
}

TEST(Load, SuggestsTheRightSectionForAMisplacedKey) {
  EXPECT_THAT(Violations("trainer:\n  ppo_mini_batch_size: 4\nactor_rollout_ref: {actor: {optim: {lr: 1}}}\n"),
              ElementsAre(Mentions({"trainer.ppo_mini_batch_size:", "unknown key", "actor.ppo_mini_batch_size?"}),
                          Mentions({"actor.optim.lr?"})));
}

TEST(Load, ListsWhatThereIsWhenNoKeyIsNear) {
  EXPECT_THAT(Violations("trainer: {zzzzzz: 1}\nquux:\n"),
              ElementsAre(Mentions({"t.yaml:1: trainer.zzzzzz:", "unknown key", "threads, device, out in trainer"}),
                          Mentions({"t.yaml:2: quux:", "unknown key", "data, actor, trainer"})));
}

TEST(Load, RefusesADuplicateKey) {
  EXPECT_THAT(
      Violations("trainer:\n  threads: 1\n  threads: 2\nactor: {}\nactor.optim.lr: 1\nactor: {optim: {lr: 2}}\n"),
      ElementsAre(Mentions({"t.yaml:3: trainer.threads:", "line 2"}), Mentions({"t.yaml:6: actor:", "line 4"}),
                  Mentions({"t.yaml:6: actor.optim.lr:", "line 5"})));
}

TEST(Load, TellsWhereTextIsNotYaml) {
  EXPECT_THAT(Violations("actor:\n  clip_ratio: [1\ndata: 2"), ElementsAre(testing::StartsWith("t.yaml:3:")));
  EXPECT_THAT(Violations("a: \"x", {"trainer.threads=x"}),
              ElementsAre(testing::StartsWith("t.yaml:1:"), HasSubstr("command line: trainer.threads")))
      << "the command line is checked all the same";
  for (const char* yaml : {"- 1\n- 2", "word", "? [a]\n: 1", "? {a: b}\n: 1", ": 1", "~: 1", "\"\": 1"}) {
    EXPECT_THAT(Violations(yaml), ElementsAre(testing::StartsWith("t.yaml:1:"))) << yaml;
  }
  EXPECT_THAT(Violations("actor.cap: 1\n---\nactor.cap: 2\n"), ElementsAre(Mentions({"t.yaml:", "document"})));
}

// The parser names the column of the ':' for the first of these, and "illegal map value".
TEST(Load, TellsWhereATabIndents) {
  EXPECT_THAT(Violations("actor:\n\tclip_ratio: 1"), ElementsAre(Mentions({"t.yaml:2:1:", "tab", "spaces"})));
  EXPECT_THAT(Violations("actor:\n  cap: 1\n  \tclip_ratio: 1"), ElementsAre(Mentions({"t.yaml:3:3:", "tab"})));
  EXPECT_THAT(Violations("actor:\n\t- cap"), ElementsAre(Mentions({"t.yaml:2:1:", "tab"})));
  EXPECT_THAT(Violations("actor: {\n\tcap: *a}"), ElementsAre(Mentions({"t.yaml:2:7:", "*"})))
      << "where tabs are allowed, something else is wrong";
}

TEST(Load, SaysWhatWouldBeRightInsteadOfWhatIsNotYaml) {
  EXPECT_THAT(Violations("a: b: c"), ElementsAre(Mentions({"t.yaml:1:5:", "': '", "quotes"})));
  EXPECT_THAT(Violations("a: 1\nb:\n  c: 1\n d: 2"), ElementsAre(Mentions({"t.yaml:4:2:", "indent"})));
  EXPECT_THAT(Violations("a: @b"), ElementsAre(Mentions({"t.yaml:1:4:", "quotes"})));
  EXPECT_THAT(Violations("a: 'it's'"), ElementsAre(Mentions({"t.yaml:1:8:", "quotes"})));
  EXPECT_THAT(Violations("a: \"b\nc: 1\n"), ElementsAre(Mentions({"t.yaml:3:", "quotes"}))) << "a line break ends it";
  EXPECT_THAT(Violations("a: {b: 1"), ElementsAre(Mentions({"t.yaml:1:", "'}'"})));
  EXPECT_THAT(Violations("a: \"\\q\""), ElementsAre(Mentions({"t.yaml:1:", "\\\\"})));
}

TEST(Load, RefusesAnchorsAliasesAndTags) {
  EXPECT_THAT(Violations("actor: &a {cap: 1}"), ElementsAre(Mentions({"t.yaml:1:8:", "anchors (&)"})));
  EXPECT_THAT(Violations("actor: *a"), ElementsAre(testing::StartsWith("t.yaml:1:8: ")));
  EXPECT_THAT(Violations("actor.cap: !!float 1"), ElementsAre(Mentions({"t.yaml:1", "tags (!)"})));
  EXPECT_THAT(Violations("actor.cap: !python/object/apply:os.system [x]"), ElementsAre(HasSubstr("tags")));
}

TEST(Load, RefusesTextThatIsNotUtf8) {
  EXPECT_THAT(Violations("actor.cap: 1\n# \xFF\n"), ElementsAre("t.yaml:2: not UTF-8 text"));
  EXPECT_THAT(Violations(std::string("a\0:1", 4)), ElementsAre("t.yaml:1: not UTF-8 text"));
  EXPECT_THAT(Violations("", {"trainer.out=\xFF"}),
              ElementsAre(Mentions({"command line: trainer.out:", "\"\\xff\"", "UTF-8"})));
}

TEST(Load, BoundsWhatHostileTextCosts) {
  EXPECT_THAT(Violations(std::string(2 << 20, '#')), ElementsAre(Mentions({"2097152 bytes", "at most 1048576"})));
  EXPECT_THAT(Violations(std::string(100'000, '[')), ElementsAre(HasSubstr("a list")));
  EXPECT_THAT(Violations("a: " + std::string(32, '[') + std::string(32, ']')),
              ElementsAre(Mentions({"nested", "than 32"})));
  EXPECT_THAT(Violations("a: " + std::string(31, '[') + std::string(31, ']')), ElementsAre(HasSubstr("unknown key")));
  EXPECT_THAT(Violations("a: " + std::string(100'000, '[')).size(), 1u);
  EXPECT_THAT(Violations("a: " + std::string(100'000, '{')).size(), 1u);
  std::string nested;
  for (int depth = 0; depth < 40; ++depth) absl::StrAppend(&nested, std::string(depth, ' '), "a:\n");
  EXPECT_THAT(Violations(nested), ElementsAre(Mentions({"nested", "than 32"})));
  EXPECT_THAT(Violations("? " + std::string(1'000, 'k') + "\n: 1\n"), ElementsAre(Mentions({"256 bytes"})));
  std::string many;
  for (int i = 0; i < 10'001; ++i) absl::StrAppend(&many, "k", i, ": 1\n");
  EXPECT_THAT(Violations(many), ElementsAre(Mentions({"10000 keys"})));
  many.resize(many.rfind("k10000"));
  const std::vector<std::string> told = Violations(many);
  EXPECT_EQ(told.size(), 101u);
  EXPECT_EQ(told.back(), "and 9900 more");
  EXPECT_THAT(Violations("trainer.threads: " + std::string(500'000, '9'))[0].size(), testing::Lt(200u));
}

TEST(Load, RandomTextNeverCrashesIt) {
  const std::string seed_text =
      "data: {train_batch_size: 64, shuffle: false}\nactor:\n  optim:\n    lr: 1e-3\n  kl_loss_type: \"k1\"\n# c\n";
  int accepted = 0;
  const absl::string_view special = "[]{}:,-?#&*!|>'\"%@`\n\t \\~.=\xC3\xA9";
  for (uint64_t seed = 0; seed < 3'000; ++seed) {
    Rng rng(seed);
    std::string text = seed % 3 == 0 ? "" : seed_text;
    for (uint64_t edits = 1 + rng.Below(30); edits > 0; --edits) {
      const char c = rng.Below(4) == 0 ? static_cast<char>(rng.Below(256)) : special[rng.Below(special.size())];
      const size_t at = rng.Below(text.size() + 1);
      if (rng.Below(3) == 0 && at < text.size()) {
        text.erase(at, 1 + rng.Below(5));
      } else {
        text.insert(at, 1 + rng.Below(3), c);
      }
    }
    Trainer t;
    const Spec spec = MakeSpec(t);
    const absl::Status loaded = Load(spec, text, "t.yaml", {});
    EXPECT_NE(loaded.ok(), !loaded.message().empty());
    if (loaded.ok()) {
      ++accepted;
      EXPECT_EQ(Load(spec, Dump(spec), "dump.yaml", {}), absl::OkStatus());
    }
    Load(spec, "", "t.yaml", std::vector{text, "trainer.out=" + text}).IgnoreError();
  }
  EXPECT_GT(accepted, 10);
  EXPECT_LT(accepted, 1'000);
}

TEST(Dump, GroupsKeysBySection) {
  Trainer t;
  t.out = "a: b";
  EXPECT_EQ(Dump(MakeSpec(t)), R"(data:
  train_batch_size: 128
  shuffle: true
actor:
  ppo_mini_batch_size: 32
  optim:
    lr: 0.0004
  clip_ratio: 0.2
  cap: 1.0
  kl_loss_type: k3
trainer:
  threads: 1
  device: cpu
  out: "a: b"
)");
}

TEST(Dump, LoadsBackToTheSameValues) {
  const std::string texts[] = {"",
                               "null",
                               "~",
                               "true",
                               "NO",
                               "12",
                               "1e3",
                               "-",
                               "a\nb\t\"\\\x01\x7F",
                               "a: b # c",
                               "é€😀",
                               " x ",
                               "cuda:1",
                               "/tmp/a b",
                               "[1, 2]",
                               "&a *b !c",
                               "\xC2\x85 \xE2\x80\xA8 \xEF\xBB\xBF"};
  const double numbers[] = {
      0, -0.0, 1, 1e-4, 0.1, 1.0 / 3, 1e300, -5e-324, 123456789012345680.0, std::numeric_limits<double>::max()};
  for (size_t i = 0; i < std::max(std::size(texts), std::size(numbers)); ++i) {
    Trainer t;
    t.out = texts[i % std::size(texts)];
    t.cap = numbers[i % std::size(numbers)];
    t.train_batch = std::numeric_limits<int64_t>::max();
    t.mini_batch = 1;
    t.kl = static_cast<Kl>(i % 3);
    const std::string yaml = Dump(MakeSpec(t));
    Trainer back;
    const Spec spec = MakeSpec(back);
    ASSERT_EQ(Load(spec, yaml, "dump.yaml", {}), absl::OkStatus()) << yaml;
    EXPECT_EQ(back.out, t.out) << yaml;
    EXPECT_EQ(back.cap, t.cap) << yaml;
    EXPECT_EQ(std::signbit(back.cap), std::signbit(t.cap));
    EXPECT_EQ(back.train_batch, t.train_batch);
    EXPECT_EQ(back.kl, t.kl);
    EXPECT_EQ(Dump(spec), yaml);
    EXPECT_EQ(ValuesIn(yaml, "dump.yaml").value(), Values(spec)) << yaml;
  }
}

TEST(ValuesIn, AreThoseThatWereDumpedWhateverReferencesTheyLookLike) {
  for (const std::string text : {"${a}", "\\${a}", "\\\\${a}", "$${", "a\\", "${${", "\\$\\{x"}) {
    Trainer t;
    t.out = text;
    const Spec spec = MakeSpec(t);
    EXPECT_EQ(ValuesIn(Dump(spec), "dump.yaml").value(), Values(spec)) << text;
  }
}

TEST(ValuesIn, AreByKeyWhateverTheFieldsAre) {
  EXPECT_EQ(ValuesIn("a:\n  b: 1\n  c: [x, '2']\nd: ''\n", "c.yaml").value(),
            (std::map<std::string, std::string>{{"a.b", "1"}, {"a.c", "[x, \"2\"]"}, {"d", "\"\""}}));
  EXPECT_THAT(ValuesIn("a: 1\na: 2\n", "c.yaml").status().message(), HasSubstr("c.yaml:2: "));
  EXPECT_EQ(ValuesIn("[1", "c.yaml").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Reference, ShowsKeyTypeDefaultAndMeaning) {
  Trainer t;
  const Spec spec = MakeSpec(t);
  ASSERT_EQ(Load(spec, "trainer.threads: 9", "t.yaml", {}), absl::OkStatus());
  const std::string table = Reference(spec);
  EXPECT_THAT(table, testing::StartsWith("| key | type | default | meaning |\n|---|---|---|---|\n"));
  EXPECT_THAT(table, HasSubstr("| `trainer.threads` | integer ≥ 1 | `1` | Threads. |\n"))
      << "defaults are those of binding";
  EXPECT_THAT(table, HasSubstr("| `actor.kl_loss_type` | k1, k2 or k3 | `k3` | Estimator \\| KL. |\n"));
}

TEST(Spec, RefusesAndDoesNotDumpWhatMeansNothingBesideOtherKeys) {
  std::string path;
  int64_t size = 96;
  Spec spec;
  spec.String("model.path", &path, "Where from.");
  spec.Int("model.size", &size, "How large.");
  spec.Unused(
      {"model.size"}, [&] { return !path.empty(); }, "the model of model.path has its own");
  EXPECT_TRUE(Load(spec, "model: {size: 5}", "a.yaml", {}).ok());
  EXPECT_EQ(Dump(spec), "model:\n  path: \"\"\n  size: 5\n");
  EXPECT_TRUE(Load(spec, "model: {path: x}", "a.yaml", {}).ok());
  EXPECT_EQ(Dump(spec), "model:\n  path: x\n");
  EXPECT_THAT(Load(spec, "model: {size: 5}", "a.yaml", std::vector<std::string>{"model.path=x"}).message(),
              Mentions({"a.yaml:1: model.size:", "the model of model.path has its own"}));
}

// `loss.centre_coef=0` was refused beside a loss that has none.
TEST(Spec, TakesAnUnusedKeyThatIsOffOrAsByDefault) {
  bool used = false;
  double coef = 0.5;
  std::string name = "a";
  Spec spec;
  spec.Float("coef", &coef, "Weight.").AtLeast(0);
  spec.String("name", &name, "Text.");
  spec.Unused(
      {"coef", "name"}, [&] { return !used; }, "nothing has it");
  EXPECT_EQ(Load(spec, "coef: 0", "a.yaml", {}), absl::OkStatus());
  EXPECT_EQ(Load(spec, "coef: 0.50\nname: a", "a.yaml", {}), absl::OkStatus());
  EXPECT_EQ(Dump(spec), "");
  EXPECT_THAT(Load(spec, "coef: 0.25\nname: '0'", "a.yaml", {}).message(),
              Mentions({"a.yaml:1: coef:", "a.yaml:2: name:", "nothing has it"}));
}

}  // namespace
}  // namespace tdock::config
