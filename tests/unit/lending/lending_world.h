// Creditors and debtors for tests of the lending plane: real threads and sockets in one process,
// and a PartialAttention whose answers are a hash of everything that it was asked. Thread safety: a
// FakeAttention's gate may be opened and closed by any thread; the rest is the test's thread.
#pragma once

#include <dirent.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/lending/creditor_links.h"
#include "common/lending/lending_service.h"
#include "common/runtime/random.h"

namespace tandem::lending {

inline constexpr int64_t kQFloats = 8;
inline constexpr int32_t kNumLayers = 4;
inline constexpr int32_t kUnitBlocks = 2;
inline constexpr size_t kRecordBytes = 16;

class ManualClock : public Clock {
 public:
  absl::Time Now() const override {
    absl::MutexLock lock(&mutex_);
    ++reads_;
    return now_;
  }
  // Waits, in real time, until it was read this many times more.
  void AwaitReads(int count) const {
    absl::MutexLock lock(&mutex_);
    const auto read = [this, end = reads_ + count] { return reads_ >= end; };
    mutex_.Await(absl::Condition(&read));
  }
  void Advance(absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    now_ += time;
  }

 private:
  mutable absl::Mutex mutex_;
  mutable int64_t reads_ = 0;
  absl::Time now_ = absl::UnixEpoch();
};

// The record of one row over one unit.
inline void WriteRecord(int32_t layer, int32_t unit, absl::Span<const BlockId> blocks,
                        int64_t position, const float* q, std::byte* record) {
  uint64_t hash[2] = {static_cast<uint64_t>(layer) * 1000003 + unit, 17};
  const auto mix = [&hash](uint64_t value) {
    hash[0] = (hash[0] ^ value) * 0x9e3779b97f4a7c15u;
    hash[1] = (hash[1] + (hash[0] >> 29)) * 0xbf58476d1ce4e5b9u;
  };
  mix(static_cast<uint64_t>(position));
  for (const BlockId block : blocks) mix(static_cast<uint64_t>(block.value()));
  for (int64_t i = 0; i < kQFloats; ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, q + i, sizeof bits);
    mix(bits);
  }
  std::memcpy(record, hash, kRecordBytes);
}

// [unit][row][record], as an engine's.
inline std::vector<std::byte> RightAnswer(int32_t layer, const engine::UnitSpan& units,
                                          absl::Span<const BlockId> blocks, int64_t first_position,
                                          int32_t num_rows, const float* q, int64_t q_stride) {
  std::vector<std::byte> answer(static_cast<size_t>(units.size()) * num_rows * kRecordBytes);
  std::byte* record = answer.data();
  for (int32_t unit = 0; unit < units.size(); ++unit) {
    for (int32_t row = 0; row < num_rows; ++row, record += kRecordBytes) {
      WriteRecord(layer, units.first + unit,
                  blocks.subspan(static_cast<size_t>(unit) * kUnitBlocks, kUnitBlocks),
                  first_position + row, q + row * q_stride, record);
    }
  }
  return answer;
}

// What a test controls of a FakeAttention. Outlives it.
struct Gate {
  // Computing waits while it is closed.
  void Set(bool closed) {
    absl::MutexLock lock(&mutex);
    is_closed = closed;
  }
  void Pass() {
    absl::MutexLock lock(&mutex);
    ++num_arrived;
    mutex.Await(absl::Condition(
        +[](Gate* gate) { return !gate->is_closed; }, this));
    ++num_passed;
  }
  void AwaitArrivals(int count) {
    absl::MutexLock lock(&mutex);
    const auto there = [this, count] { return num_arrived >= count; };
    mutex.Await(absl::Condition(&there));
  }
  void Fetched(size_t blocks) {
    if (while_fetching) while_fetching();
    absl::MutexLock lock(&mutex);
    num_fetched += blocks;
  }
  // Waits, in real time, until the creditor has read this many blocks ahead.
  void AwaitFetched(size_t count) {
    absl::MutexLock lock(&mutex);
    const auto there = [this, count] { return num_fetched >= count; };
    TANDEM_CHECK(mutex.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(20)));
  }
  int passed() {
    absl::MutexLock lock(&mutex);
    return num_passed;
  }

  std::function<void()> while_fetching;  // on the creditor's thread; set before it has loans
  absl::Mutex mutex;
  bool is_closed = false;
  int num_arrived = 0, num_passed = 0;
  size_t num_fetched = 0;
};

class FakeAttention : public engine::PartialAttention {
 public:
  explicit FakeAttention(Gate* gate) : gate_(gate) {}
  int64_t q_floats() const override { return kQFloats; }
  int64_t AnswerBytes(int32_t, const engine::UnitSpan& units, int32_t num_rows) const override {
    return int64_t{units.size()} * num_rows * static_cast<int64_t>(kRecordBytes);
  }
  absl::Status Compute(const engine::PartialQuery& query, absl::Span<std::byte> answer) override {
    const auto expected =
        static_cast<size_t>(AnswerBytes(query.layer, query.units, query.num_rows));
    if (query.layer < 0 || query.layer >= kNumLayers || answer.size() != expected ||
        query.q.size() != static_cast<size_t>(query.num_rows) * kQFloats ||
        query.blocks.size() != static_cast<size_t>(query.units.size()) * kUnitBlocks) {
      return absl::InvalidArgumentError("a question that does not fit");
    }
    if (gate_ != nullptr) gate_->Pass();
    const auto right = RightAnswer(query.layer, query.units, query.blocks, query.first_position,
                                   query.num_rows, query.q.data(), kQFloats);
    std::memcpy(answer.data(), right.data(), right.size());
    return absl::OkStatus();
  }
  int64_t FetchForNextLayer(int32_t, absl::Span<const BlockId> blocks) override {
    if (gate_ != nullptr) gate_->Fetched(blocks.size());
    return static_cast<int64_t>(blocks.size());
  }

 private:
  Gate* const gate_;
};

// One creditor, and the events that its core would get.
class CreditorNode {
 public:
  struct Options {
    std::string name = "creditor";
    std::string secret = "secret";
    std::string tcp_host = "127.0.0.1";
    absl::Duration lease_time = absl::Seconds(5);
    double compute_share = 100;
    const Clock* clock = nullptr;
    Gate* gate = nullptr;
  };

  explicit CreditorNode(const Options& options) : options_(options) {
    LendingServiceOptions service_options;
    service_options.node = NodeId(options.name);
    service_options.incarnation = Incarnation(7);
    service_options.fleet_secret = options.secret;
    service_options.tcp_host = options.tcp_host;
    service_options.lease_time = options.lease_time;
    service_options.compute_share = options.compute_share;
    service = *LendingService::Start(service_options, std::make_unique<FakeAttention>(options.gate),
                                     options.clock == nullptr ? RealClock() : *options.clock,
                                     [this](LendingEvent event) {
                                       absl::MutexLock lock(&mutex_);
                                       events_.push_back(std::move(event));
                                     });
  }

  CreditorAddress address(const std::string& host = "host") const {
    return {.node = NodeId(options_.name),
            .incarnation = Incarnation(7),
            .host = host,
            .lending_address = service->address()};
  }

  // Waits for one event of this kind, in real time.
  template <typename Event>
  Event Await() {
    absl::MutexLock lock(&mutex_);
    const auto find = [this] {
      for (const LendingEvent& event : events_) {
        if (std::holds_alternative<Event>(event)) return true;
      }
      return false;
    };
    TANDEM_CHECK(mutex_.AwaitWithTimeout(absl::Condition(&find), absl::Seconds(20)));
    for (auto it = events_.begin();; ++it) {
      if (!std::holds_alternative<Event>(*it)) continue;
      const Event event = std::get<Event>(*it);
      events_.erase(it);
      return event;
    }
  }
  size_t num_events() {
    absl::MutexLock lock(&mutex_);
    return events_.size();
  }

 private:
  const Options options_;
  absl::Mutex mutex_;
  std::vector<LendingEvent> events_;

 public:
  std::unique_ptr<LendingService> service;  // ends first: its thread calls the sink
};

inline std::vector<BlockId> BlocksFrom(int32_t first, size_t count) {
  std::vector<BlockId> blocks;
  for (size_t i = 0; i < count; ++i) blocks.push_back(BlockId(first + static_cast<int32_t>(i) * 3));
  return blocks;
}

// One debtor with its loans.
class DebtorNode {
 public:
  struct Options {
    std::string name = "debtor";
    std::string secret = "secret";
    std::string host = "host";  // another one than the creditors': links over TCP
    absl::Duration patience = absl::Seconds(10), answer_time_max = absl::Seconds(10);
    absl::Duration lease_time = absl::Seconds(5);
    const Clock* clock = nullptr;
  };

  explicit DebtorNode(const Options& options)
      : id{.node = NodeId(options.name), .incarnation = Incarnation(1)} {
    CreditorLinksOptions links_options;
    links_options.self = id;
    links_options.host = options.host;
    links_options.fleet_secret = options.secret;
    links_options.patience = options.patience;
    links_options.answer_time_max = options.answer_time_max;
    links_options.lease_time = options.lease_time;
    links = *CreditorLinks::Create(links_options,
                                   options.clock == nullptr ? RealClock() : *options.clock);
  }

  LoanKey key(uint64_t loan) const { return {.debtor = id, .loan = LoanId(loan)}; }

  // A loan that both ends know.
  void Borrow(CreditorNode& creditor, uint64_t loan, const engine::UnitSpan& units,
              int32_t first_block) {
    const auto blocks = BlocksFrom(first_block, static_cast<size_t>(units.size()) * kUnitBlocks);
    creditor.service->Handle(ServeLoan{.key = key(loan), .units = units, .blocks = blocks});
    links->Handle(UseLoan{.loan = LoanId(loan), .creditor = creditor.address()});
  }

  const DebtorId id;
  std::unique_ptr<CreditorLinks> links;
};

// The parts of one layer, with their queries, answers and the answers that are right.
class Layer {
 public:
  explicit Layer(int32_t layer) : layer_(layer) {}

  // The loan's blocks are BlocksFrom(first_block) of loan_units, of which `units` are asked.
  void Add(uint64_t loan, const engine::UnitSpan& loan_units, int32_t first_block,
           const engine::UnitSpan& units, int32_t num_rows, int64_t q_stride, Random& random) {
    const auto blocks =
        BlocksFrom(first_block, static_cast<size_t>(loan_units.size()) * kUnitBlocks);
    auto q = std::make_unique<std::vector<float>>(static_cast<size_t>(num_rows * q_stride));
    for (float& value : *q) value = static_cast<float>(random.Below(1 << 20));
    engine::RemotePart part;
    part.lent = {.loan = LoanId(loan), .units = units};
    part.layer = layer_;
    part.num_rows = num_rows;
    part.first_position = static_cast<int64_t>(random.Below(1 << 20));
    part.q = q->data();
    part.q_stride = q_stride;
    part.q_floats = kQFloats;
    part.answer_pieces = units.size();
    right_.push_back(
        RightAnswer(layer_, units,
                    absl::MakeConstSpan(blocks).subspan(
                        static_cast<size_t>(units.first - loan_units.first) * kUnitBlocks,
                        static_cast<size_t>(units.size()) * kUnitBlocks),
                    part.first_position, num_rows, part.q, q_stride));
    answers_.push_back(
        std::make_unique<std::vector<std::byte>>(right_.back().size(), std::byte{0xee}));
    part.answer = absl::MakeSpan(*answers_.back());
    queries_.push_back(std::move(q));
    parts.push_back(part);
  }

  void Exchange(CreditorLinks& links) {
    links.Ask(absl::MakeSpan(parts));
    links.Collect(absl::MakeSpan(parts));
  }
  bool IsRight(size_t part) const {
    return parts[part].status.ok() && *answers_[part] == right_[part];
  }
  bool IsAllRight() const {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!IsRight(i)) return false;
    }
    return true;
  }

  std::vector<engine::RemotePart> parts;

 private:
  int32_t layer_;
  std::vector<std::unique_ptr<std::vector<float>>> queries_;
  std::vector<std::unique_ptr<std::vector<std::byte>>> answers_;
  std::vector<std::vector<std::byte>> right_;
};

// Waits for one event of Progress of this kind, in real time.
template <typename Event>
Event AwaitAtDebtor(DebtorNode& debtor) {
  const absl::Time give_up = absl::Now() + absl::Seconds(20);
  while (absl::Now() < give_up) {
    for (const LendingEvent& event : debtor.links->Progress()) {
      if (std::holds_alternative<Event>(event)) return std::get<Event>(event);
    }
  }
  TANDEM_CHECK(false, "no such event");
  return {};
}

inline size_t NumDescriptors() {
  size_t count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (::readdir(folder) != nullptr) ++count;
  ::closedir(folder);
  return count;
}

}  // namespace tandem::lending
