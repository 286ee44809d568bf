// The filters of each source. Internal to this module.
#pragma once

#include "absl/types/span.h"
#include "text/jinja/filters.h"

namespace tdock::jinja {

absl::Span<const Filter> FiltersOfText();
absl::Span<const Filter> FiltersOfSequences();
absl::Span<const Filter> LazyFilters();

}  // namespace tdock::jinja
