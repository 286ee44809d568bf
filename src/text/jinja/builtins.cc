#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/status.h"
#include "core/base/utf8.h"
#include "text/jinja/arguments.h"
#include "text/jinja/arithmetic.h"
#include "text/jinja/compare.h"
#include "text/jinja/lookup.h"
#include "text/jinja/node.h"
#include "text/jinja/repr.h"

namespace tdock::jinja {
namespace {

using Result = absl::StatusOr<Value>;

constexpr int64_t kLongestRange = 100'000;  // jinja2's MAX_RANGE

Result RangeFunction(Machine& machine, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"", "", ""}, 1));
  int64_t numbers[3] = {0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    if (!IsGiven(bound[i])) continue;
    TDOCK_ASSIGN_OR_RETURN(numbers[i], IntOf(bound[i], "an argument of range()"));
  }
  if (!IsGiven(bound[1])) numbers[1] = std::exchange(numbers[0], 0);
  const auto [begin, end, step] = numbers;
  if (step == 0) return absl::InvalidArgumentError("the step of range() must not be zero");
  const absl::int128 span = step > 0 ? absl::int128(end) - begin : absl::int128(begin) - end;
  const absl::int128 by = step > 0 ? absl::int128(step) : -absl::int128(step);
  const absl::int128 length = span <= 0 ? absl::int128(0) : (span - 1) / by + 1;
  if (length > kLongestRange) {
    return absl::InvalidArgumentError(absl::StrCat("the range has more than ", kLongestRange, " items"));
  }
  return machine.NewValue<RangeObject>(begin, end, step, static_cast<int64_t>(length));
}

// The pairs that dict() and namespace() are made of.
absl::StatusOr<Value::Pairs> PairsOf(Machine& machine, Arguments& arguments) {
  Value::Pairs pairs;
  if (arguments.positional.size() > 1)
    return absl::InvalidArgumentError("at most one argument without a name is taken");
  if (!arguments.positional.empty() && arguments.positional[0].is_dict()) {
    const size_t size = arguments.positional[0].AsDict().pairs.size();
    machine.SpendItems(size);
    if (!machine.meter().MayHold(size * sizeof(Value::Pairs::value_type))) return machine.meter().status();
    pairs = arguments.positional[0].AsDict().pairs;
  } else if (!arguments.positional.empty()) {
    TDOCK_ASSIGN_OR_RETURN(const auto items, ItemsOf(machine, arguments.positional[0]));
    for (const Value& item : items) {
      TDOCK_ASSIGN_OR_RETURN(auto pair, ItemsOf(machine, item));
      if (pair.size() != 2) return absl::InvalidArgumentError("the items of a dict must be pairs");
      TDOCK_RETURN_IF_ERROR(CheckHashable(pair[0]));
      pairs.emplace_back(std::move(pair[0]), std::move(pair[1]));
    }
  }
  pairs.insert(pairs.end(), arguments.named.begin(), arguments.named.end());
  return pairs;
}

Result DictFunction(Machine& machine, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(Value::Pairs pairs, PairsOf(machine, arguments));
  return machine.Dict(std::move(pairs));
}

Result NamespaceFunction(Machine& machine, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(Value::Pairs pairs, PairsOf(machine, arguments));
  const Value dict = machine.Dict(std::move(pairs));
  for (const auto& [name, value] : dict.AsDict().pairs) {
    if (!name.is_text()) return absl::InvalidArgumentError("the attributes of a namespace must be strings");
    if (absl::StartsWith(name.AsText().bytes(), "_")) {
      return absl::InvalidArgumentError(absl::StrCat("the attribute ", Quoted(name.AsText().bytes()),
                                                     " of a namespace must not begin with an underscore"));
    }
  }
  auto& space = machine.New<Namespace>();
  space.attributes = dict.AsDict().pairs;
  machine.meter().Hold(space.attributes.size() * sizeof(Value::Pairs::value_type));
  return Value::OfObject(space);
}

Result CyclerFunction(Machine& machine, Arguments& arguments) {
  if (arguments.positional.empty() || !arguments.named.empty())
    return absl::InvalidArgumentError("cycler() takes the items to cycle through");
  machine.meter().Hold(arguments.positional.size() * sizeof(Value));
  return machine.NewValue<Cycler>(std::move(arguments.positional));
}

Result JoinerFunction(Machine& machine, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"sep"}));
  return machine.NewValue<Joiner>(IsGiven(bound[0]) ? bound[0] : machine.String(", "));
}

Result LipsumFunction(Machine&, Arguments&) {
  return absl::UnimplementedError("lipsum() is not supported: a chat template must render the same each time");
}

Result RaiseException(Machine& machine, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"message"}, 1));
  TDOCK_ASSIGN_OR_RETURN(const Text message, Str(machine, bound[0]));
  return machine.Raise(message.bytes());
}

// The fields of strftime in the C locale whose text does not depend on the machine.
Result StrftimeNow(Machine& machine, Arguments& arguments) {
  TDOCK_ASSIGN_OR_RETURN(const auto bound, Bind(arguments, {"format"}, 1));
  TDOCK_RETURN_IF_ERROR(CheckText(bound[0], "the format of strftime_now()"));
  const absl::string_view format = bound[0].AsText().bytes();
  constexpr absl::string_view kFields = "aAbBcCdDeFgGhHIjklmMnprRsStTuUVwWxXyY%";
  std::string text;
  constexpr int64_t kStepsOfField = 8;
  machine.meter().SpendBytes(format.size());
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%' || at + 1 >= format.size()) {
      text.push_back(format[at]);
      continue;
    }
    ++at;
    if (!machine.meter().Spend(kStepsOfField)) return machine.meter().status();
    const bool is_short = format[at] == '-' && at + 1 < format.size();  // glibc's form without padding
    if (is_short) ++at;
    const char field = format[at];
    if (field == 'f') {
      absl::StrAppend(&text, absl::FormatTime("%E6f", machine.now(), machine.zone()));
    } else if (field == 'z' || field == 'Z') {  // of a time without a zone, as datetime.now() has it
      continue;
    } else if (kFields.find(field) == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("the field ", Quoted(format.substr(at - 1, 2)), " of strftime_now() is unknown"));
    } else {
      const std::string shown = absl::FormatTime(std::string("%") + field, machine.now(), machine.zone());
      const size_t first = is_short ? std::min(shown.find_first_not_of("0 "), shown.size() - 1) : 0;
      absl::StrAppend(&text, absl::string_view(shown).substr(first));
    }
    if (text.size() > (1 << 16)) return absl::InvalidArgumentError("the format of strftime_now() is too long");
  }
  return machine.String(text);
}

struct NamedBuiltin {
  absl::string_view name;
  Builtin::Call call;
};
constexpr NamedBuiltin kBuiltins[] = {{"range", RangeFunction},
                                      {"dict", DictFunction},
                                      {"namespace", NamespaceFunction},
                                      {"cycler", CyclerFunction},
                                      {"joiner", JoinerFunction},
                                      {"lipsum", LipsumFunction},
                                      {"raise_exception", RaiseException},
                                      {"strftime_now", StrftimeNow}};

}  // namespace

Builtin::Call FindBuiltin(absl::string_view name) {
  const auto* const found =
      std::find_if(std::begin(kBuiltins), std::end(kBuiltins), [&](const NamedBuiltin& b) { return b.name == name; });
  return found == std::end(kBuiltins) ? nullptr : found->call;
}

}  // namespace tdock::jinja
