#include "cli/bench_serve/load_run.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/runtime/clock.h"

namespace tandem::cli {
namespace {

using boost::asio::io_context;

constexpr absl::Duration kTick = absl::Milliseconds(100);

// One phase of a run: sends `count` requests and waits until all have ended.
class Phase {
 public:
  Phase(const LoadOptions& options, io_context& context, LoadTarget& target, Workload& workload,
        const LoadHooks& hooks)
      : options_(options),
        context_(context),
        target_(target),
        workload_(workload),
        hooks_(hooks),
        random_(NewSeededRandom(options.seed)),
        arrival_timer_(context),
        tick_timer_(context) {
    if (options_.arrivals.has_value() && !options_.next_gap)
      arrivals_.emplace(*options_.arrivals, *random_);
    if (options_.concurrency == 0) options_.concurrency = kInFlightMax;
  }

  LoadResult Run() {
    began_ = RealClock().Now();
    last_end_ = began_;
    next_due_ = began_;
    if (options_.next_gap) PassGap();
    Tick();
    Advance();
    context_.run();
    context_.restart();
    result_.elapsed = last_end_ - began_;
    return std::move(result_);
  }

 private:
  // A request in flight.
  class Flight final : public AnswerObserver {
   public:
    Flight(Phase& phase, RequestRecord record) : phase_(phase), record_(std::move(record)) {}
    void OnText(absl::Time at) override {
      ++phase_.texts_;
      if (!record_.first_token.has_value()) {
        record_.first_token = at - phase_.began_;
      } else if (phase_.gaps_kept_ < kGapsMax) {
        ++phase_.gaps_kept_;
        record_.gaps_ms.push_back(static_cast<float>(absl::ToDoubleMilliseconds(at - last_text_)));
      }
      last_text_ = at;
    }
    void OnUsage(const AnswerUsage& usage) override {
      record_.prompt_tokens = usage.prompt_tokens;
      record_.output_tokens = usage.output_tokens;
      record_.cached_tokens = usage.cached_tokens;
      // A server may serve it in another tier: routers that lack a tier of OpenAI's serve
      // `default`.
      if (!record_.service_tier.empty() && !usage.service_tier.empty())
        record_.service_tier = usage.service_tier;
      record_.prefilled_apart = usage.prefilled_apart;
      record_.host_memory_tokens = usage.host_memory_tokens;
      record_.disk_tokens = usage.disk_tokens;
      record_.fetched_tokens = usage.fetched_tokens;
    }
    void OnEnd(absl::Time at, const std::string& error, const std::string& message) override {
      record_.ended = at - phase_.began_;
      if (timed_out_) {
        record_.error = "timeout";
        record_.message =
            absl::StrCat("no whole answer within ", absl::FormatDuration(phase_.options_.timeout));
      } else if (!record_.cancelled) {
        record_.error = error;
        record_.message = message;
      }
      phase_.OnEnd(record_, at);
    }
    // Ends with OnEnd.
    void Cancel(bool timed_out) {
      if (record_.cancelled || timed_out_) return;
      timed_out_ = timed_out;
      record_.cancelled = !timed_out;
      call_->Cancel();
    }
    void set_call(std::shared_ptr<LoadCall> call) { call_ = std::move(call); }
    const RequestRecord& record() const { return record_; }

   private:
    Phase& phase_;
    RequestRecord record_;
    std::shared_ptr<LoadCall> call_;
    absl::Time last_text_;
    bool timed_out_ = false;
  };

  bool open_loop() const { return arrivals_.has_value() || options_.next_gap != nullptr; }
  void PassGap() {
    const std::optional<absl::Duration> gap = options_.next_gap();
    at_end_ = !gap.has_value();
    next_due_ += gap.value_or(absl::ZeroDuration());
  }
  int64_t in_flight() const { return static_cast<int64_t>(flights_.size()); }

  bool AllBegun(absl::Time now) const {
    return stopping_ || at_end_ || (options_.requests > 0 && begun_ >= options_.requests) ||
           (open_loop() ? next_due_ : now) - began_ >= options_.duration;
  }

  // Starts the requests that may start now.
  void Advance() {
    const absl::Time now = RealClock().Now();
    while (!AllBegun(now) && in_flight() < options_.concurrency) {
      if (open_loop() && next_due_ > now) return WaitUntilDue(now);
      const absl::Time due = open_loop() ? next_due_ : now;
      if (arrivals_.has_value()) next_due_ += arrivals_->NextGap();
      Begin(due, now);
      if (options_.next_gap) PassGap();
    }
    if (AllBegun(now) && flights_.empty()) {
      ended_ = true;
      arrival_timer_.cancel();
      tick_timer_.cancel();
    }
  }

  void Begin(absl::Time due, absl::Time now) {
    LoadRequest request = workload_.Next();
    if (const auto tier = options_.service_mix.TierOf(begun_)) request.service_tier = tier->name;
    RequestRecord record;
    record.service_tier = request.service_tier;
    record.index = begun_++;
    record.intended = due - began_;
    record.sent = now - began_;
    auto flight = std::make_unique<Flight>(*this, std::move(record));
    Flight& started = *flight;
    flights_[begun_ - 1] = std::move(flight);
    started.set_call(target_.Start(request, started));
  }

  void WaitUntilDue(absl::Time now) {
    if (waiting_) return;
    waiting_ = true;
    arrival_timer_.expires_after(absl::ToChronoNanoseconds(next_due_ - now));
    arrival_timer_.async_wait([this](const boost::system::error_code& error) {
      waiting_ = false;
      if (!error) Advance();
    });
  }

  void OnEnd(RequestRecord& record, absl::Time at) {
    ++ended_count_;
    failed_ += record.ok() || record.cancelled ? 0 : 1;
    last_end_ = std::max(last_end_, at);
    const int64_t index = record.index;
    result_.records.push_back(std::move(record));
    // Posted: the caller is the flight itself, and a closed loop of refused requests must not
    // recurse.
    boost::asio::post(context_, [this, index] {
      flights_.erase(index);
      Advance();
    });
  }

  void Tick() {
    if (ended_) return;
    const absl::Time now = RealClock().Now();
    if (!stopping_ && hooks_.should_stop()) {
      stopping_ = result_.interrupted = true;
      arrival_timer_.cancel();
    }
    for (const auto& [index, flight] : flights_) {
      const bool late = now - began_ - flight->record().sent > options_.timeout;
      if (stopping_ || late) flight->Cancel(/*timed_out=*/late);
    }
    hooks_.on_progress({.elapsed = now - began_,
                        .begun = begun_,
                        .ended = ended_count_,
                        .failed = failed_,
                        .in_flight = in_flight(),
                        .texts = texts_});
    Advance();
    if (ended_) return;
    tick_timer_.expires_after(absl::ToChronoNanoseconds(kTick));
    tick_timer_.async_wait([this](const boost::system::error_code&) { Tick(); });
  }

  LoadOptions options_;
  io_context& context_;
  LoadTarget& target_;
  Workload& workload_;
  const LoadHooks& hooks_;
  const std::unique_ptr<Random> random_;
  std::optional<Arrivals> arrivals_;
  boost::asio::steady_timer arrival_timer_, tick_timer_;
  absl::flat_hash_map<int64_t, std::unique_ptr<Flight>> flights_;
  absl::Time began_, next_due_, last_end_;
  int64_t begun_ = 0, ended_count_ = 0, failed_ = 0, texts_ = 0, gaps_kept_ = 0;
  bool stopping_ = false, ended_ = false, waiting_ = false, at_end_ = false;
  LoadResult result_;
};

}  // namespace

absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options, io_context& context,
                                   LoadTarget& target, Workload& workload, const LoadHooks& hooks) {
  if (options.warmup > 0) {
    LoadOptions warmup = options;
    warmup.requests = options.warmup;
    warmup.duration = absl::InfiniteDuration();
    warmup.arrivals.reset();
    warmup.concurrency = options.concurrency == 0 ? 8 : std::min<int64_t>(options.concurrency, 64);
    const LoadHooks quiet = {.should_stop = hooks.should_stop,
                             .on_progress = [](const LoadProgress&) {}};
    LoadResult warmed = Phase(warmup, context, target, workload, quiet).Run();
    if (warmed.interrupted) {
      return LoadResult{.records = {}, .elapsed = absl::ZeroDuration(), .interrupted = true};
    }
    const auto answered = [](const RequestRecord& record) { return record.ok(); };
    if (std::none_of(warmed.records.begin(), warmed.records.end(), answered)) {
      const RequestRecord& first = warmed.records.front();
      return absl::UnavailableError(absl::StrCat(
          "no request of the warm-up was answered: ", first.error, ": ", first.message));
    }
  }
  return Phase(options, context, target, workload, hooks).Run();
}

}  // namespace tandem::cli
