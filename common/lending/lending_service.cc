#include "common/lending/lending_service.h"

#include <immintrin.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/lending/compute_share.h"
#include "common/lending/lending_wire.h"
#include "common/lending/link_listener.h"
#include "common/lending/loan_table.h"
#include "common/lending/read_ahead.h"
#include "common/runtime/polite_spin.h"
#include "common/runtime/thread.h"
#include "common/telemetry/log.h"
#include "common/transfer/call_channel.h"

namespace tandem::lending {
namespace {

using transfer::CallChannel;
using transfer::CallId;
using transfer::CallPeer;
using transfer::OwnedDescriptor;

constexpr size_t kDebtorsMax = 64;
// How often a busy thread looks for new callers and for leases that end.
constexpr absl::Duration kHousekeepingEvery = absl::Milliseconds(5);
constexpr absl::Duration kLendingSleepMax = absl::Milliseconds(500);
// A debtor without a word for so many lease times has no loans any more, and loses its link.
constexpr int kSilentLeases = 4;
constexpr size_t kCacheLineBytes = 64;

struct alignas(kCacheLineBytes) CacheLine {
  std::byte bytes[kCacheLineBytes];
};

size_t RoundUpToLine(size_t bytes) {
  return (bytes + kCacheLineBytes - 1) / kCacheLineBytes * kCacheLineBytes;
}

class LendingServiceImpl final : public LendingService, private transfer::CallHandler {
 public:
  LendingServiceImpl(const LendingServiceOptions& options,
                     std::unique_ptr<engine::PartialAttention> attention, const Clock& clock,
                     Sink sink)
      : options_(options),
        attention_(std::move(attention)),
        clock_(clock),
        sink_(std::move(sink)),
        share_(options.compute_share, clock.Now()),
        ahead_(*attention_, ReadAheadBytes()),
        answers_((kAnswersBytesMax + kEntriesMax * kCacheLineBytes) / sizeof(CacheLine)) {
    entries_.reserve(kEntriesMax);
    pieces_.reserve(kEntriesMax + 2);
  }

  ~LendingServiceImpl() override {
    stopping_.store(true);
    const uint64_t one = 1;
    if (wake_.get() >= 0) (void)!::write(wake_.get(), &one, sizeof one);
    thread_.Join();
  }

  absl::Status Prepare() {
    LinkListenerOptions listener = {
        .self = {.node = options_.node, .incarnation = options_.incarnation},
        .fleet_secret = options_.fleet_secret,
        .tcp_host = options_.tcp_host};
    ASSIGN_OR_RETURN(listener_, LinkListener::Start(listener));
    // Real time: the channel's clock only says how often it looks for ended peers.
    ASSIGN_OR_RETURN(channel_, CallChannel::Create(RealClock(), {.calls_max = kLinkCallsMax,
                                                                 .peers_max = kDebtorsMax}));
    wake_ = OwnedDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    epoll_ = OwnedDescriptor(::epoll_create1(EPOLL_CLOEXEC));
    for (const int descriptor : {wake_.get(), listener_->descriptor(), channel_->descriptor()}) {
      epoll_event event = {.events = EPOLLIN, .data = {}};
      if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) {
        return absl::UnavailableError(absl::StrCat("epoll: ", std::strerror(errno)));
      }
    }
    address_ = listener_->address();
    thread_ = Thread("lending", [this] { Run(); });
    return absl::OkStatus();
  }

  const std::string& address() const override { return address_; }
  void Handle(const ServeLoan& command) override { loans_.Serve(command, clock_.Now()); }
  void Handle(const StopServing& command) override { loans_.Stop(command.key); }
  void Handle(const RecallLoan& command) override { loans_.Recall(command.key); }

  LendingServiceCounters counters() const override {
    return {.answers = num_answers_.load(),
            .refusals = num_refusals_.load(),
            .connections_refused = connections_refused_.load(),
            .debtors = debtors_now_.load(),
            .delayed = num_delayed_.load(),
            .bytes_out = bytes_out_.load()};
  }

 private:
  struct Debtor {
    DebtorId id;
    absl::Time heard;
  };

  void Run() {
    absl::Time last_question = absl::InfinitePast();
    absl::Time last_pass = clock_.Now();
    while (!stopping_.load()) {
      const bool is_busy = channel_->Progress(*this) > 0;
      for (const CallPeer peer : std::exchange(broken_, {})) RemoveDebtor(peer);
      const absl::Time now = clock_.Now();
      // A question that waited while this pass computed was not heard yet.
      if (now >= next_housekeeping_) KeepHouse(now, now - last_pass);
      last_pass = now;
      if (is_busy) {
        last_question = RealClock().Now();
      } else if (ReadSomeAhead()) {
        continue;  // a question may have come meanwhile
      } else if (!StaysAwake(RealClock().Now() - last_question)) {
        Sleep(now);
        next_housekeeping_ = absl::InfinitePast();
      }
    }
  }

  bool ReadSomeAhead() {
    if (!ahead_.has_more()) return false;
    const absl::Time began = clock_.Now();
    ahead_.FetchSome();
    share_.Spend(clock_.Now() - began);
    return true;
  }

  // `idle`: since the last question.
  bool StaysAwake(absl::Duration idle) {
    if (idle >= options_.spin) return idle < options_.spin_alone && spin_.Yield();
    _mm_pause();
    return true;
  }

  void Sleep(absl::Time now) {
    // Checked with a sleep of its own length, because the clock may be a test's.
    absl::Duration time = std::min(kLendingSleepMax, options_.lease_time / 8);
    time = std::min(time, std::max(listener_->next_time() - now, absl::ZeroDuration()));
    const int milliseconds =
        static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(time, absl::Milliseconds(1))));
    if (channel_->PrepareSleep() && !stopping_.load()) {
      epoll_event event;
      ::epoll_wait(epoll_.get(), &event, 1, milliseconds);
    }
    channel_->EndSleep();
  }

  void KeepHouse(absl::Time now, absl::Duration pass) {
    next_housekeeping_ = now + kHousekeepingEvery;
    for (LinkListener::NewLink& made : listener_->Progress(now)) AddDebtor(std::move(made), now);
    connections_refused_.store(listener_->refused() + debtors_refused_);
    for (LendingEvent& event : loans_.TakeEnded(now - options_.lease_time - pass)) {
      sink_(std::move(event));
    }
    for (const auto& [peer, debtor] : debtors_) {
      const absl::Duration silence_max = kSilentLeases * options_.lease_time + pass;
      if (debtor.heard + silence_max < now) broken_.push_back(peer);
    }
  }

  void AddDebtor(LinkListener::NewLink made, absl::Time now) {
    const auto peer = channel_->AddPeer(std::move(made.link));
    if (!peer.ok()) {
      ++debtors_refused_;
      Log(LogLevel::kWarning, "refused a debtor",
          {{"debtor", made.debtor.node.value()}, {"reason", peer.status().message()}});
      return;
    }
    debtors_[*peer] = {.id = std::move(made.debtor), .heard = now};
    debtors_now_.store(static_cast<int64_t>(debtors_.size()));
  }

  void RemoveDebtor(CallPeer peer) {
    channel_->RemovePeer(peer);
    debtors_.erase(peer);
    debtors_now_.store(static_cast<int64_t>(debtors_.size()));
  }

  void OnPeerLost(CallPeer peer, const absl::Status&) override {
    debtors_.erase(peer);
    debtors_now_.store(static_cast<int64_t>(debtors_.size()));
  }

  void OnResponse(CallId, absl::StatusOr<absl::Span<const std::byte>>) override {}

  void OnRequest(CallPeer peer, CallId call, absl::Span<const std::byte> message) override {
    Debtor& debtor = debtors_.at(peer);
    debtor.heard = clock_.Now();
    const auto kind = ReadKind(message);
    absl::Status status = kind.status();
    if (kind.ok()) {
      status = *kind == RequestKind::kAttend ? Attend(debtor, message)
                                             : AnswerLoans(debtor, *kind, message);
    }
    if (status.ok()) status = channel_->Respond(peer, call, pieces_);
    if (status.ok()) {
      bytes_out_.fetch_add(static_cast<int64_t>(transfer::MessageBytes(pieces_)));
      return;
    }
    num_refusals_.fetch_add(1);
    Log(LogLevel::kWarning, "a debtor lost its link",
        {{"debtor", debtor.id.node.value()}, {"reason", status.message()}});
    broken_.push_back(peer);
  }

  // Begins a response; the entries are added to entries_, and their bytes to pieces_.
  void BeginResponse(RequestKind kind, size_t count) {
    head_ = {.kind = kind, .count = static_cast<uint32_t>(count)};
    entries_.clear();
    pieces_.clear();
    pieces_.push_back({reinterpret_cast<const std::byte*>(&head_), sizeof head_});
    pieces_.push_back({});  // the entries' place; EndResponse knows where they lie
  }
  void EndResponse() {
    pieces_[1] = {reinterpret_cast<const std::byte*>(entries_.data()),
                  entries_.size() * sizeof(ResponseEntry)};
  }
  void AddEntry(const DebtorId& debtor, LoanId loan, const absl::Status& status,
                absl::Span<const std::byte> bytes) {
    const bool is_recalled = loans_.IsRecalled(debtor, loan);
    if (!status.ok()) num_refusals_.fetch_add(1);
    entries_.push_back({.code = static_cast<uint32_t>(status.code()),
                        .flags = is_recalled ? ResponseEntry::kRecalled : 0,
                        .bytes = bytes.size()});
    if (!bytes.empty()) pieces_.push_back(bytes);
  }

  // Errors: the message is not well formed.
  absl::Status Attend(const Debtor& debtor, absl::Span<const std::byte> message) {
    ASSIGN_OR_RETURN(const AttendReader reader, AttendReader::Read(message));
    WaitForShare();
    const absl::Time began = clock_.Now();
    BeginResponse(RequestKind::kAttend, reader.size());
    ahead_.Restart();
    absl::Span<const float> queries = reader.queries();
    absl::Span<std::byte> room(answers_.data()->bytes, answers_.size() * sizeof(CacheLine));
    for (size_t i = 0; i < reader.size(); ++i) {
      const AttendPart part = reader.part(i);
      const size_t floats = static_cast<size_t>(part.num_rows) * part.q_floats;
      const absl::Span<std::byte> answer = room.first(part.answer_bytes);
      room.remove_prefix(RoundUpToLine(part.answer_bytes));
      const absl::Status status =
          ComputePart(debtor.id, part, queries.first(floats), answer, began);
      queries.remove_prefix(floats);
      // A text takes the answer's place and no more, so that the response has room for it.
      const size_t bytes = status.ok()
                               ? answer.size()
                               : std::min({status.message().size(), kStatusTextMax, answer.size()});
      if (!status.ok() && bytes > 0) std::memcpy(answer.data(), status.message().data(), bytes);
      AddEntry(debtor.id, LoanId(part.loan), status, answer.first(bytes));
    }
    EndResponse();
    const absl::Duration busy = clock_.Now() - began;
    const int64_t busy_us =
        std::clamp<int64_t>(absl::ToInt64Microseconds(busy), 0, int64_t{ResponseEntry::kBusyUsMax});
    entries_.front().flags |= static_cast<uint32_t>(busy_us) << ResponseEntry::kBusyShift;
    share_.Spend(busy);
    num_answers_.fetch_add(1);
    return absl::OkStatus();
  }

  absl::Status ComputePart(const DebtorId& debtor, const AttendPart& part,
                           absl::Span<const float> q, absl::Span<std::byte> answer,
                           absl::Time now) {
    const engine::UnitSpan units = {.first = part.first_unit, .end = part.end_unit};
    ASSIGN_OR_RETURN(const LoanTable::Use use,
                     loans_.BeginUse(debtor, LoanId(part.loan), units, now));
    const absl::Status status = attention_->Compute({.layer = part.layer,
                                                     .units = units,
                                                     .blocks = use.blocks,
                                                     .num_rows = part.num_rows,
                                                     .first_position = part.first_position,
                                                     .q = q},
                                                    answer);
    loans_.EndUse();
    if (status.ok()) ahead_.Add(part.layer, use.owner, use.blocks);
    if (absl::IsDataLoss(status)) sink_(LoanDamaged{{debtor, LoanId(part.loan)}});
    return status;
  }

  // kRenew and kReturn. Errors: the message is not well formed.
  absl::Status AnswerLoans(const Debtor& debtor, RequestKind kind,
                           absl::Span<const std::byte> message) {
    ASSIGN_OR_RETURN(const LoansReader reader, LoansReader::Read(message));
    BeginResponse(kind, reader.size());
    for (size_t i = 0; i < reader.size(); ++i) {
      const LoanId loan = reader.loan(i);
      const absl::Status status = kind == RequestKind::kRenew
                                      ? loans_.Renew(debtor.id, loan, debtor.heard)
                                      : loans_.Return(debtor.id, loan);
      AddEntry(debtor.id, loan, status, {});
    }
    EndResponse();
    if (kind == RequestKind::kReturn) next_housekeeping_ = absl::InfinitePast();
    return absl::OkStatus();
  }

  void WaitForShare() {
    if (share_.Delay(clock_.Now()) > absl::ZeroDuration()) num_delayed_.fetch_add(1);
    while (!stopping_.load()) {
      const absl::Duration delay = share_.Delay(clock_.Now());
      if (delay <= absl::ZeroDuration()) return;
      pollfd wake = {.fd = wake_.get(), .events = POLLIN, .revents = 0};
      const timespec time = absl::ToTimespec(delay);
      ::ppoll(&wake, 1, &time, nullptr);
    }
  }

  const LendingServiceOptions options_;
  const std::unique_ptr<engine::PartialAttention> attention_;
  const Clock& clock_;
  Sink sink_;
  LoanTable loans_;
  std::string address_;
  std::unique_ptr<LinkListener> listener_;
  std::unique_ptr<CallChannel> channel_;
  OwnedDescriptor wake_, epoll_;

  // The lending thread's.
  // Bound: kDebtorsMax, the channel's peers.
  absl::btree_map<CallPeer, Debtor> debtors_;
  // Bound: the debtors, emptied after each pass.
  std::vector<CallPeer> broken_;
  ComputeShare share_;
  ReadAhead ahead_;
  PoliteSpin spin_;
  absl::Time next_housekeeping_ = absl::InfinitePast();
  int64_t debtors_refused_ = 0;
  // The response that is being made. Bound: kEntriesMax each, allocated once; answers_ have
  // kAnswersBytesMax bytes, each at its own cache line.
  MessageHead head_ = {};
  std::vector<ResponseEntry> entries_;
  std::vector<absl::Span<const std::byte>> pieces_;
  std::vector<CacheLine> answers_;

  std::atomic<int64_t> debtors_now_{0}, num_answers_{0}, num_refusals_{0}, num_delayed_{0},
      bytes_out_{0}, connections_refused_{0};
  std::atomic<bool> stopping_{false};
  Thread thread_;  // last: it uses everything above
};

}  // namespace

absl::StatusOr<std::unique_ptr<LendingService>> LendingService::Start(
    const LendingServiceOptions& options, std::unique_ptr<engine::PartialAttention> attention,
    const Clock& clock, Sink sink) {
  auto service =
      std::make_unique<LendingServiceImpl>(options, std::move(attention), clock, std::move(sink));
  RETURN_IF_ERROR(service->Prepare());
  return service;
}

}  // namespace tandem::lending
