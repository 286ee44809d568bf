// Keys, values and names of files from outside are quoted in every message.
#include "core/base/testing/hostile_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "core/config/spec.h"

namespace tdock::config {
namespace {

// The hostile text between double quotes of YAML.
constexpr char kInYaml[] = R"(\e]0;PWNED\a\e[2J\nFAKE LOG LINE\u202e)";

struct QuotedFields {
  int64_t batch = 1;
  double rate = 1;
  double low = 1, high = 1;
  std::string type = "k1", out;
  std::vector<std::string> files;
};

// Loads, and returns the lines of the error and of the notes.
std::vector<std::string> LinesAbout(absl::string_view yaml, absl::string_view file,
                                    const std::vector<std::string>& overrides, bool lenient) {
  QuotedFields fields;
  Spec spec;
  spec.Int("data.batch", &fields.batch, "An integer.").AtLeast(1);
  spec.Float("actor.low", &fields.low, "A number.");
  spec.Float("actor.high", &fields.high, "A number.");
  spec.Float("actor.optim.lr", &fields.rate, "A number.").MoreThan(0);
  spec.Choice("actor.type", &fields.type, {{"k1", std::string("k1")}, {"k3", std::string("k3")}}, "A choice.");
  spec.String("out", &fields.out, "A text.");
  spec.Strings("data.files", &fields.files, "Texts.").NotEmpty();
  spec.Alias("rl.batch", "data.batch");
  spec.AliasSection("whole.actor", "actor");
  spec.Spread("actor.clip", {"actor.low", "actor.high"});
  spec.Ignore("trainer", "nothing is trained", {"1"});
  spec.Refuse("actor.epochs", "nothing is repeated", {"1"});
  spec.Check({"out", "data.files"}, [] { return std::vector<std::string>{"they do not fit"}; });
  std::string lines;
  const absl::Status loaded =
      Load(spec, yaml, file, overrides,
           {.lenient = lenient, .note = [&](const std::string& note) { absl::StrAppend(&lines, note, "\n"); }});
  absl::StrAppend(&lines, loaded.message(), "\n", ValuesIn(yaml, file).status().message());
  return absl::StrSplit(lines, '\n');
}

void ExpectQuoted(absl::string_view yaml, absl::string_view file = "t.yaml",
                  const std::vector<std::string>& overrides = {}) {
  for (const bool lenient : {false, true}) {
    for (const std::string& line : LinesAbout(yaml, file, overrides, lenient)) {
      EXPECT_TRUE(IsSafeForTerminals(line)) << EscapeForTerminal(line);
      EXPECT_FALSE(absl::StartsWith(line, "FAKE")) << "in a message about " << yaml;
    }
  }
}

TEST(HostileText, IsQuotedInMessagesAboutAFile) {
  for (const char* yaml : {R"("HOSTILE": 1)",
                           R"("HOSTILE": {"HOSTILE": 1})",
                           "\"HOSTILE\": 1\n\"HOSTILE\": 2",
                           R"(data: {"HOSTILE": 1})",
                           R"(data.batch: "HOSTILE")",
                           R"(data: "HOSTILE")",
                           R"(data.batch: ["HOSTILE"])",
                           R"(actor.type: "HOSTILE")",
                           R"(data.files: ["HOSTILE"])",
                           R"(data.files: ["HOSTILE", ["HOSTILE"]])",
                           R"(out: "${HOSTILE}")",
                           R"(out: "x${HOSTILE:y}")",
                           R"(out: "${oc.select:HOSTILE}")",
                           R"(out: "x${data}HOSTILE")",
                           R"(out: "${HOSTILE")",
                           R"(whole: {actor: {"HOSTILE": 1}})",
                           R"(whole: {"HOSTILE": 1})",
                           R"(whole.actor: "HOSTILE")",
                           R"(trainer: {"HOSTILE": "HOSTILE"})",
                           R"("trainer.HOSTILE": 1)",
                           R"(actor.epochs: "HOSTILE")",
                           R"(actor.clip: ["HOSTILE"])",
                           R"(actor: {clip: "HOSTILE"})",
                           R"({out: "HOSTILE", data: {files: ["HOSTILE"]}})",
                           "rl.batch: 2\ndata.batch: \"HOSTILE\"",
                           R"(out: !HOSTILE x)",
                           R"(? "HOSTILE")",
                           R"(- "HOSTILE")"}) {
    ExpectQuoted(absl::StrReplaceAll(yaml, {{"HOSTILE", kInYaml}}));
  }
  ExpectQuoted(kHostileText);
  ExpectQuoted(absl::StrCat("data: ", kHostileText));
  ExpectQuoted(absl::StrCat("data: \"\\", kHostileText, "\""));
  ExpectQuoted("data: {batch: x}", kHostileText);
  ExpectQuoted("a: [", kHostileText);
  ExpectQuoted("\xFF", kHostileText);
}

TEST(HostileText, IsQuotedInMessagesAboutTheCommandLine) {
  for (const char* argument :
       {"HOSTILE", "HOSTILE=1", "~HOSTILE", "data.HOSTILE=1", "data.batch=HOSTILE", "data.batch='HOSTILE",
        "data.files=[HOSTILE", "data.files=[[HOSTILE]]", "out=${HOSTILE}", "actor.type=HOSTILE",
        "whole.actor.HOSTILE=1", "trainer.HOSTILE=1", "actor.epochs=HOSTILE", "out=HOSTILE"}) {
    ExpectQuoted("", "t.yaml", {absl::StrReplaceAll(argument, {{"HOSTILE", kHostileText}})});
  }
}

}  // namespace
}  // namespace tdock::config
