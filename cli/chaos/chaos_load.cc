#include "cli/chaos/chaos_load.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/rpc/status.h"
#include "common/runtime/clock.h"
#include "common/runtime/random.h"
#include "common/runtime/thread.h"
#include "tandem/v1/client.grpc.pb.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kWatchInterval = absl::Milliseconds(100);
constexpr absl::Duration kRetryDelayMin = absl::Milliseconds(20);
constexpr absl::Duration kRetryDelayMax = absl::Milliseconds(500);

// One router, as all clients reach it.
std::unique_ptr<v1::Tandem::Stub> NewStub(const std::string& router) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  return v1::Tandem::NewStub(
      grpc::CreateCustomChannel(router, grpc::InsecureChannelCredentials(), arguments));
}

// A call that ends when no message arrives for a while. The watcher thread calls End.
class WatchedCall {
 public:
  void News() { last_news_ = absl::ToUnixMicros(RealClock().Now()); }
  absl::Duration Silence() const { return RealClock().Now() - absl::FromUnixMicros(last_news_); }
  void End() { context_.TryCancel(); }
  grpc::ClientContext& context() { return context_; }

 private:
  grpc::ClientContext context_;
  std::atomic<int64_t> last_news_{absl::ToUnixMicros(RealClock().Now())};
};

class ChaosLoadImpl final : public ChaosLoad {
 public:
  ChaosLoadImpl(const Options& options, absl::Time begin)
      : options_(options), begin_(begin), calls_(static_cast<size_t>(options.clients)) {
    for (const std::string& router : options_.routers) stubs_.push_back(NewStub(router));
  }
  ~ChaosLoadImpl() override {
    cut_off_ = true;
    stopping_ = true;
    for (Thread& client : clients_) client.Join();
    watching_ = false;
    watcher_.Join();
  }

  // `next`: the request a client asks, given its randomness; negative = it is done.
  void Run(const std::function<int(Random&)>& next, Recording* recording) {
    watcher_ = Thread("chaos watch", [this] { Watch(); });
    for (int i = 0; i < options_.clients; ++i) {
      clients_.emplace_back(absl::StrCat("client ", i), [this, i, next, recording] {
        const auto random = NewSeededRandom(options_.seed + 1000003 * static_cast<uint64_t>(i + 1));
        for (int serial = 0; !stopping_; ++serial) {
          const int index = next(*random);
          if (index < 0) break;
          One(i, serial, index, *random, recording);
        }
        absl::MutexLock lock(&mutex_);
        ++clients_done_;
      });
    }
  }

  bool Finish(absl::Duration timeout, const std::function<bool()>& stopped) override {
    stopping_ = true;
    const absl::Time deadline = RealClock().Now() + timeout;
    while (!DoneWithin(std::min(kWatchInterval, deadline - RealClock().Now())))
      if (stopped() || RealClock().Now() >= deadline) return false;
    return true;
  }
  void Await(const std::function<bool()>& stopped) {
    while (!DoneWithin(kWatchInterval))
      if (stopped()) stopping_ = cut_off_ = true;
  }
  std::vector<ChaosRequest> Records() const override {
    absl::MutexLock lock(&mutex_);
    return records_;
  }

 private:
  // ---- the watcher

  void Watch() {
    while (watching_) {
      {
        absl::MutexLock lock(&mutex_);
        for (WatchedCall* call : calls_)
          if (call != nullptr && (cut_off_ || call->Silence() > options_.patience)) call->End();
      }
      Pause(kWatchInterval);
    }
  }
  void Pause(absl::Duration duration) {
    absl::Mutex mutex;
    absl::MutexLock lock(&mutex);
    const bool never = false;
    mutex.AwaitWithTimeout(absl::Condition(&never), duration);
  }

  // ---- a client

  void One(int client, int serial, int index, Random& random, Recording* recording) {
    v1::GenerateRequest request = options_.requests[static_cast<size_t>(index)];
    request.set_request_id(absl::StrCat("c", client, "-", serial, "-", index));
    int64_t cancel_after = -1;
    if (recording == nullptr) {
      // Mostly prompts that no cache holds yet.
      if (random.Below(4) != 0) request.set_cache_salt(request.request_id());
      if (random.Below(10) == 0)
        cancel_after = static_cast<int64_t>(
            random.Below(static_cast<uint64_t>(request.stop().max_tokens()) + 1));
    }
    AnswerCollector collector(request.has_n() ? request.n() : 1);
    ChaosRequest record;
    record.id = request.request_id();
    Ask(client, request, cancel_after, random, collector, record);
    record.tokens = collector.tokens();
    if (recording == nullptr) Compare(index, collector, record);
    absl::MutexLock lock(&mutex_);
    if (cut_off_ && record.end == ChaosRequest::End::kGivenUp) return;
    records_.push_back(record);
    if (recording != nullptr) recording->answers[static_cast<size_t>(index)] = collector.answers();
  }

  void Compare(int index, const AnswerCollector& collector, ChaosRequest& record) const {
    if (record.end == ChaosRequest::End::kMismatch) return;
    const std::string difference =
        Difference(options_.expected[static_cast<size_t>(index)], collector.answers(),
                   /*whole=*/record.end == ChaosRequest::End::kWhole);
    if (difference.empty()) return;
    record.end = ChaosRequest::End::kMismatch;
    record.what = difference;
  }

  void Ask(int client, v1::GenerateRequest& request, int64_t cancel_after, Random& random,
           AnswerCollector& collector, ChaosRequest& record) {
    const absl::Time asked = RealClock().Now();
    absl::Time last_news = asked;
    size_t router = random.Below(stubs_.size());
    absl::Duration delay = kRetryDelayMin;
    while (true) {
      const std::vector<int32_t> received = collector.Resume();
      request.mutable_resume_from_tokens()->Assign(received.begin(), received.end());
      const int64_t before = collector.tokens();
      const absl::Status status =
          Call(client, *stubs_[router], request, cancel_after, collector, last_news, record);
      if (record.end == ChaosRequest::End::kCancelled) return;
      if (absl::IsDataLoss(status) || absl::IsInvalidArgument(status)) {
        record.end = ChaosRequest::End::kMismatch;
        record.what = status.ToString();
        return;
      }
      if (collector.finished()) return;
      if (cut_off_ || RealClock().Now() - asked > options_.give_up_after) {
        record.end = ChaosRequest::End::kGivenUp;
        record.what = absl::StrCat("after ", absl::FormatDuration(RealClock().Now() - asked), ", ",
                                   record.calls, " calls: ", status.ToString());
        return;
      }
      ++record.calls;
      if (record.first_failure.empty() && !absl::IsResourceExhausted(status))
        record.first_failure = status.ToString();
      router = (router + 1) % stubs_.size();
      if (collector.tokens() > before) delay = kRetryDelayMin;
      Pause(delay * (0.5 + 0.001 * static_cast<double>(random.Below(1000))));
      delay = std::min(2 * delay, kRetryDelayMax);
    }
  }

  absl::Status Call(int client, v1::Tandem::Stub& stub, const v1::GenerateRequest& request,
                    int64_t cancel_after, AnswerCollector& collector, absl::Time& last_news,
                    ChaosRequest& record) {
    WatchedCall call;
    SetCall(client, &call);
    const auto reader = stub.Generate(&call.context(), request);
    v1::GenerateResponse part;
    absl::Status status;
    while (status.ok() && reader->Read(&part)) {
      call.News();
      status = collector.OnPart(part);
      if (part.has_delta() || part.has_finished()) NoteNews(last_news, record);
      if (part.has_finished()) NoteRoute(part.finished().route(), request, record);
      if (cancel_after < 0 || collector.tokens() < cancel_after || collector.finished()) continue;
      record.end = ChaosRequest::End::kCancelled;
      break;
    }
    if (!status.ok() || record.end == ChaosRequest::End::kCancelled) call.End();
    const absl::Status ended = rpc::FromGrpc(reader->Finish());
    SetCall(client, nullptr);
    if (!status.ok()) return status;
    if (ended.ok() && !collector.finished() && record.end != ChaosRequest::End::kCancelled)
      return absl::DataLossError("the call ended before the answer did");
    return ended;
  }

  void NoteRoute(const v1::Route& route, const v1::GenerateRequest& request,
                 ChaosRequest& record) const {
    record.placements = std::max(record.placements, route.attempts());
    record.lent_tokens = std::max(record.lent_tokens, route.lent().tokens_max());
    record.split = record.lent_tokens > 0 && !route.prefill_node().empty() &&
                   request.tokens().ids_size() > options_.pool_tokens;
  }

  bool DoneWithin(absl::Duration time) const {
    absl::MutexLock lock(&mutex_);
    const auto all_done = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return clients_done_ == options_.clients;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&all_done), time);
  }

  void SetCall(int client, WatchedCall* call) {
    absl::MutexLock lock(&mutex_);
    calls_[static_cast<size_t>(client)] = call;
  }

  void NoteNews(absl::Time& last_news, ChaosRequest& record) const {
    const absl::Time now = RealClock().Now();
    if (now - last_news > record.pause()) {
      record.pause_from = last_news - begin_;
      record.pause_to = now - begin_;
    }
    last_news = now;
  }

  const Options options_;
  const absl::Time begin_;
  std::vector<std::unique_ptr<v1::Tandem::Stub>> stubs_;
  std::atomic<bool> stopping_{false}, cut_off_{false}, watching_{true};
  mutable absl::Mutex mutex_;
  std::vector<WatchedCall*> calls_ ABSL_GUARDED_BY(mutex_);  // by client; null = none runs
  std::vector<ChaosRequest> records_ ABSL_GUARDED_BY(mutex_);
  int clients_done_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<Thread> clients_;
  Thread watcher_;
};

}  // namespace

ChaosLoad::Recording ChaosLoad::Record(const Options& options,
                                       const std::function<bool()>& stopped) {
  Recording recording;
  recording.answers.resize(options.requests.size());
  Options calm = options;
  calm.patience = std::max(options.patience, options.give_up_after / 2);
  ChaosLoadImpl load(calm, RealClock().Now());
  std::atomic<int> next{0};
  const int count = static_cast<int>(options.requests.size());
  load.Run(
      [&](Random&) {
        const int index = next++;
        return index < count ? index : -1;
      },
      &recording);
  load.Await(stopped);
  recording.records = load.Records();
  return recording;
}

std::unique_ptr<ChaosLoad> ChaosLoad::Start(const Options& options, absl::Time begin) {
  auto load = std::make_unique<ChaosLoadImpl>(options, begin);
  const size_t count = options.requests.size();
  load->Run([count](Random& random) { return static_cast<int>(random.Below(count)); }, nullptr);
  return load;
}

}  // namespace tandem::cli
