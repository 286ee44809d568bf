// The conversation templates that have a name here, as Jinja texts. Internal to this module.
#pragma once

#include <span>

#include "absl/strings/string_view.h"

namespace tdock::text {

struct NamedTemplate {
  absl::string_view name;
  absl::string_view prelude = {};  // before `jinja`; reads `name`
  absl::string_view jinja;         // marks replies with {% generation %}; its errors name the turn
  std::span<const absl::string_view> tokens;
};

// By name.
std::span<const NamedTemplate> NamedTemplates();

}  // namespace tdock::text
