// A configuration and overrides from outside, separated by lines with nothing but %%: what loads is dumped in a form
// that loads as the same, and whose values by key are those of the fields. Their text itself is read by key, too.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "core/base/testing/hostile_text.h"
#include "core/config/spec.h"

namespace tdock::config {
namespace {

struct Fields {
  int64_t batch = 128;
  double rate = 0.5;
  double low = 0.2, high = 0.2;
  bool shuffle = true;
  std::string type = "k1";
  std::string out = "out";
  std::vector<std::string> files;
};

Spec MakeFuzzedSpec(Fields& c) {
  Spec spec;
  spec.Int("data.batch", &c.batch, "An integer.").AtLeast(1);
  spec.Float("actor.optim.lr", &c.rate, "A number.").MoreThan(0);
  spec.Float("actor.low", &c.low, "A number.");
  spec.Float("actor.high", &c.high, "A number.");
  spec.Bool("data.shuffle", &c.shuffle, "A boolean.");
  spec.Choice("actor.type", &c.type, {{"k1", std::string("k1")}, {"k3", std::string("k3")}}, "A choice.");
  spec.String("out", &c.out, "A text.");
  spec.Strings("data.files", &c.files, "Texts.");
  spec.Alias("rl.batch", "data.batch");
  spec.AliasSection("whole.actor", "actor");
  spec.AliasValue("actor.type", "low_var_kl", "k3");
  spec.Spread("actor.clip", {"actor.low", "actor.high"});
  spec.Ignore("trainer", "nothing is trained", {"1"});
  spec.Refuse("actor.epochs", "nothing is repeated", {"1"});
  return spec;
}

}  // namespace
}  // namespace tdock::config

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tdock::config;
  const std::string input(reinterpret_cast<const char*>(data), size);
  std::vector<std::string> overrides = absl::StrSplit(input, "\n%%\n");
  const std::string yaml = overrides.front();
  overrides.erase(overrides.begin());
  tdock::CheckMessage(ValuesIn(yaml, "fuzzed").status());
  for (const bool lenient : {false, true}) {
    Fields fields, again;
    const Spec spec = MakeFuzzedSpec(fields), same = MakeFuzzedSpec(again);
    const absl::Status loaded = Load(spec, yaml, "fuzzed", overrides, {.lenient = lenient});
    tdock::CheckMessage(loaded, "\n");
    if (!loaded.ok()) continue;
    const std::string dumped = Dump(spec);
    if (!Load(same, dumped, "dumped", {}).ok() || Dump(same) != dumped) std::abort();
    const auto values = ValuesIn(dumped, "dumped");
    if (!values.ok() || *values != Values(spec)) std::abort();
  }
  return 0;
}
