#include "dock/service/console/metrics.h"

#include <unistd.h>

#include <iterator>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "core/base/status.h"
#include "prometheus/metric_family.h"
#include "prometheus/text_serializer.h"

namespace tdock::console {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

// Families under construction; each is begun once, and then gets its metrics.
class Families {
 public:
  Families& Gauge(const char* name, const char* help) { return Begin(name, help, MetricType::Gauge); }
  Families& Counter(const char* name, const char* help) { return Begin(name, help, MetricType::Counter); }

  void Add(double value, std::vector<ClientMetric::Label> labels = {}) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (families_.back().type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    families_.back().metric.push_back(std::move(metric));
  }
  void Add(int64_t value, std::vector<ClientMetric::Label> labels = {}) {
    Add(static_cast<double>(value), std::move(labels));
  }

  Families& Begin(const std::string& name, const std::string& help, MetricType type) {
    if (families_.empty() || families_.back().name != name) {
      families_.push_back({.name = name, .help = help, .type = type, .metric = {}});
    }
    return *this;
  }

  // Families without metrics are left out.
  std::vector<MetricFamily> Take() && {
    std::erase_if(families_, [](const MetricFamily& family) { return family.metric.empty(); });
    return std::move(families_);
  }

 private:
  std::vector<MetricFamily> families_;
};

struct PartitionFigure {
  const char* name;
  const char* help;
  int64_t (*of)(const PartitionStatus&);
};

constexpr PartitionFigure kPartitionFigures[] = {
    {"tdock_rows", "Rows of a partition.", [](const PartitionStatus& it) { return it.rows; }},
    {"tdock_groups", "Prompt groups of a partition.", [](const PartitionStatus& it) { return it.groups; }},
    {"tdock_incomplete_groups", "Groups with missing rows.",
     [](const PartitionStatus& it) { return it.incomplete_groups; }},
    {"tdock_held_bytes", "Bytes that the cells of a partition occupy, including those that only views hold.",
     [](const PartitionStatus& it) { return it.held_bytes; }},
    {"tdock_sealed", "1 if a partition accepts no new rows.",
     [](const PartitionStatus& it) { return int64_t{it.sealed}; }},
    {"tdock_weights_version", "The published version of the weights; -1: none.",
     [](const PartitionStatus& it) { return it.weights_version; }},
};

struct ConsumerFigure {
  const char* name;
  const char* help;
  bool counter;
  int64_t ConsumerStatus::*of;
};

constexpr ConsumerFigure kConsumerFigures[] = {
    {"tdock_takeable", "Rows, or groups for a consumer of groups, that a take could return now.", false,
     &ConsumerStatus::takeable},
    {"tdock_uncommitted_rows", "Rows that are done and may still be rolled back.", false, &ConsumerStatus::uncommitted},
    {"tdock_committed_step", "The last committed step; -1: none.", false, &ConsumerStatus::committed_step},
    {"tdock_completed_rows_total", "Rows that a consumer completed.", true, &ConsumerStatus::completed},
    {"tdock_expired_rows_total", "Rows whose lease expired.", true, &ConsumerStatus::expired},
    {"tdock_unfinished_rows_total", "Rows given back with partial cells.", true, &ConsumerStatus::unfinished},
    {"tdock_sent_back_rows_total", "Rows sent back because they were too old for a consumer.", true,
     &ConsumerStatus::sent_back},
    {"tdock_stale_dropped_rows_total", "Rows dropped because they were too old for a consumer.", true,
     &ConsumerStatus::stale_dropped},
    {"tdock_reset_rows_total", "Rows that a consumer must process again.", true, &ConsumerStatus::reset},
};

// The others are the rows by state.
static_assert(std::size(kConsumerFigures) + NamesOf(DeliveryState()).size() == CountFields<ConsumerStatus>());

void AddConsumers(const std::vector<NamedPartition>& partitions, Families& families) {
  families.Gauge("tdock_consumer_rows", "Rows by their state for a consumer.");
  for (const auto& [name, status] : partitions) {
    for (const NamedConsumerStatus& consumer : status.consumers) {
      const std::pair<const char*, int64_t> states[] = {{"waiting", consumer.status.waiting},
                                                        {"ready", consumer.status.ready},
                                                        {"leased", consumer.status.leased},
                                                        {"quarantined", consumer.status.quarantined},
                                                        {"done", consumer.status.done}};
      for (const auto& [state, rows] : states) {
        families.Add(rows, {{"partition", name}, {"consumer", consumer.name}, {"state", state}});
      }
    }
  }
  for (const ConsumerFigure& figure : kConsumerFigures) {
    families.Begin(figure.name, figure.help, figure.counter ? MetricType::Counter : MetricType::Gauge);
    for (const auto& [name, status] : partitions) {
      for (const NamedConsumerStatus& consumer : status.consumers) {
        families.Add(consumer.status.*figure.of, {{"partition", name}, {"consumer", consumer.name}});
      }
    }
  }
}

void AddPartitions(const std::vector<NamedPartition>& partitions, Families& families) {
  families.Gauge("tdock_partitions", "Partitions of the dock.").Add(static_cast<int64_t>(partitions.size()));
  for (const PartitionFigure& figure : kPartitionFigures) {
    families.Gauge(figure.name, figure.help);
    for (const auto& [name, status] : partitions) families.Add(figure.of(status), {{"partition", name}});
  }
  families.Gauge("tdock_ready_cells", "Ready cells of a column.");
  for (const auto& [name, status] : partitions) {
    for (const ColumnStatus& column : status.columns) {
      families.Add(column.ready_cells, {{"partition", name}, {"column", column.name}});
    }
  }
}

void AddProcess(const ProcessFacts& process, Families& families) {
  families.Gauge("tdock_uptime_seconds", "Time since the status server started.")
      .Add(absl::ToDoubleSeconds(process.uptime));
  families.Gauge("process_start_time_seconds", "When the status server started, in seconds since 1970.")
      .Add(absl::ToDoubleSeconds(process.started - absl::UnixEpoch()));
  families.Gauge("process_resident_memory_bytes", "Resident memory of the process.").Add(process.resident_bytes);
  families.Gauge("process_virtual_memory_bytes", "Virtual memory of the process.").Add(process.virtual_bytes);
}

}  // namespace

absl::StatusOr<ProcessFacts> ReadProcess(Env& env, absl::Time started, absl::Time now) {
  TDOCK_ASSIGN_OR_RETURN(const std::string text, env.ReadFile("/proc/self/statm"));
  const std::vector<absl::string_view> fields = absl::StrSplit(text, ' ');
  int64_t pages = 0, resident = 0;
  if (fields.size() < 2 || !absl::SimpleAtoi(fields[0], &pages) || !absl::SimpleAtoi(fields[1], &resident)) {
    return absl::InternalError("/proc/self/statm does not begin with two numbers of pages");
  }
  const int64_t page_bytes = ::sysconf(_SC_PAGESIZE);
  return ProcessFacts{now - started, started, resident * page_bytes, pages * page_bytes};
}

std::string MetricsText(const std::vector<NamedPartition>& partitions, const ProcessFacts& process,
                        const std::vector<Reading>& readings) {
  Families families;
  AddPartitions(partitions, families);
  AddConsumers(partitions, families);
  AddProcess(process, families);
  for (const Reading& reading : readings) {
    std::vector<ClientMetric::Label> labels;
    for (const auto& [name, value] : reading.labels) labels.push_back({name, value});
    families.Begin(reading.name, reading.help, reading.counter ? MetricType::Counter : MetricType::Gauge)
        .Add(reading.value, std::move(labels));
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, std::move(families).Take());
  return text.str();
}

}  // namespace tdock::console
