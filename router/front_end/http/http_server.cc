#include "router/front_end/http/http_server.h"

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/steady_cond_var.h"
#include "common/runtime/clock.h"
#include "common/runtime/thread.h"
#include "common/telemetry/log.h"
#include "router/front_end/http/stamped_read.h"

namespace tandem::router {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

// Connections the kernel holds until they are accepted: bursts wait there instead of being lost.
constexpr int kBacklog = 4096;
// Connections taken on one after the other before their requests are looked at.
constexpr int kAcceptsAtOnce = 64;
// What the kernel holds of a reply that its client does not read; left alone it grows to megabytes.
constexpr int kSendBufferBytes = 256 << 10;
// After accept failed (no descriptors left): how long until the next try.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

// One I/O thread and its connections. Everything but the context and the strand is used within the
// strand's lock.
struct Worker {
  boost::asio::io_context context{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work{
      context.get_executor()};
  IoStrand strand{context};
  // Bound: connections_max (32,768) over all workers.
  absl::flat_hash_map<HttpConnection*, std::shared_ptr<HttpConnection>> connections;
  bool keeps_alive = true;  // connections, after an answer
  bool stopping = false;
  Thread thread;
};

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const HttpServerOptions& options, HttpConnection::Hooks hooks)
      : options_(options), budget_(options.buffer_bytes_max), hooks_(std::move(hooks)) {
    for (int i = 0; i < options_.threads; ++i) workers_.push_back(std::make_unique<Worker>());
    hooks_.closed = [this](HttpConnection* connection) { OnClosed(connection); };
  }

  ~HttpServerImpl() override { HttpServerImpl::Stop(); }

  void Stop() override {
    if (std::exchange(stopped_, true)) return;
    BeginDrain();
    for (auto& worker : workers_) {
      worker->strand.Post([raw = worker.get()] {
        raw->stopping = true;
        const auto connections = raw->connections;
        for (const auto& [connection, owner] : connections) owner->Close();
        raw->work.reset();
      });
    }
    for (auto& worker : workers_) worker->thread.Join();
  }

  absl::Status Bind() {
    if (options_.tls.any()) {
      ASSIGN_OR_RETURN(tls_, TlsContext::Load(options_.tls));
    }
    const size_t colon = options_.address.rfind(':');
    const std::string host = options_.address.substr(0, colon);
    const std::string port = options_.address.substr(colon + 1);
    boost::asio::io_context& context = workers_[0]->context;
    error_code error;
    tcp::resolver resolver(context);
    const bool bracketed = host.size() > 2 && host.front() == '[';
    const auto found = resolver.resolve(bracketed ? host.substr(1, host.size() - 2) : host, port,
                                        tcp::resolver::passive, error);
    if (error || found.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("http: cannot resolve ", options_.address, ": ", error.message()));
    }
    const tcp::endpoint endpoint = *found.begin();
    acceptor_ = std::make_unique<tcp::acceptor>(context);
    acceptor_->open(endpoint.protocol(), error);
    if (!error) acceptor_->set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_->bind(endpoint, error);
    if (!error) acceptor_->listen(kBacklog, error);
    if (error) {
      return absl::UnavailableError(absl::StrCat("http: cannot listen on ", options_.address, ": ",
                                                 error.message(), "; --http chooses another port"));
    }
    acceptor_->non_blocking(true, error);
    StampArrivals(acceptor_->native_handle());
    address_ = absl::StrCat(host, ":", acceptor_->local_endpoint().port());
    retry_ = std::make_unique<boost::asio::steady_timer>(context);
    return absl::OkStatus();
  }

  void Run() override {
    for (size_t i = 0; i < workers_.size(); ++i) {
      workers_[i]->thread =
          Thread(absl::StrCat("http-", i), [raw = workers_[i].get()] { raw->context.run(); });
    }
    boost::asio::post(workers_[0]->context, [this] { Accept(); });
  }

  const std::string& address() const override { return address_; }

  void EndKeepAlive() override {
    for (auto& worker : workers_) {
      worker->strand.Post([raw = worker.get()] {
        raw->keeps_alive = false;
        const auto connections = raw->connections;
        for (const auto& [connection, owner] : connections) owner->CloseWhenIdle();
      });
    }
  }

  void BeginDrain() override {
    boost::asio::post(workers_[0]->context, [this] {
      error_code ignored;
      acceptor_->close(ignored);
      retry_->cancel();
    });
    for (auto& worker : workers_) {
      worker->strand.Post([raw = worker.get()] { raw->stopping = true; });
    }
    EndKeepAlive();
  }

  void AwaitIdle(absl::Duration timeout) override {
    absl::MutexLock lock(&mutex_);
    closed_one_.WaitFor(&mutex_, timeout,
                        [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return open_ == 0; });
  }

  int64_t connections() const override {
    absl::MutexLock lock(&mutex_);
    return open_;
  }

  const BufferBudget& buffers() const override { return budget_; }

 private:
  void Accept() {
    if (!acceptor_->is_open()) return;
    Worker& worker = *workers_[next_worker_++ % workers_.size()];
    acceptor_->async_accept(
        worker.context, [this, &worker](const error_code& error, TcpSocket socket) {
          if (error == boost::asio::error::operation_aborted || !acceptor_->is_open()) return;
          if (error) {
            Log(LogLevel::kWarning, "cannot accept an HTTP connection; trying again",
                {{"error", error.message()}});
            retry_->expires_after(absl::ToChronoMilliseconds(kAcceptPause));
            retry_->async_wait([this](const error_code& cancelled) {
              if (!cancelled) Accept();
            });
            return;
          }
          TakeOn(worker, std::move(socket));
          AcceptWaiting();
          Accept();
        });
  }

  // What waits already: an I/O thread with much to do comes back to the acceptor seldom.
  void AcceptWaiting() {
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      Worker& worker = *workers_[next_worker_ % workers_.size()];
      error_code error;
      TcpSocket socket = acceptor_->accept(worker.context, error);
      if (error) return;  // none; or what Accept will meet, too
      ++next_worker_;
      TakeOn(worker, std::move(socket));
    }
  }

  void TakeOn(Worker& worker, TcpSocket socket) {
    TlsSession tls;
    if (tls_ != nullptr) {
      tls = tls_->NewSession(socket.native_handle(), RealClock().Now());
      if (tls == nullptr) return;  // closes the socket
    }
    {
      absl::MutexLock lock(&mutex_);
      if (open_ >= options_.connections_max) return;
      ++open_;
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    socket.set_option(boost::asio::socket_base::send_buffer_size(kSendBufferBytes), ignored);
    socket.non_blocking(true, ignored);
    auto connection = std::make_shared<HttpConnection>(
        worker.strand, ClientSocket(std::move(socket), std::move(tls)), options_.limits, budget_,
        hooks_);
    worker.strand.Post([this, &worker, connection] {
      {
        absl::MutexLock lock(&mutex_);
        owners_[connection.get()] = &worker;
      }
      worker.connections[connection.get()] = connection;
      if (worker.stopping) return connection->Close();
      if (!worker.keeps_alive) connection->EndKeepAlive();
      connection->Start();
    });
  }

  void OnClosed(HttpConnection* connection) {
    Worker* worker = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      const auto found = owners_.find(connection);
      worker = found->second;
      owners_.erase(found);
      --open_;
      closed_one_.SignalAll();
    }
    worker->connections.erase(connection);
  }

  const HttpServerOptions options_;
  BufferBudget budget_;  // outlives the connections
  HttpConnection::Hooks hooks_;
  // Bound: fixed at start.
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<tcp::acceptor> acceptor_;  // worker 0's thread
  std::unique_ptr<TlsContext> tls_;          // worker 0's thread; null: plain HTTP
  std::unique_ptr<boost::asio::steady_timer> retry_;
  size_t next_worker_ = 0;
  bool stopped_ = false;  // the owner's
  std::string address_;
  mutable absl::Mutex mutex_;
  // Bound: connections_max (32,768).
  absl::flat_hash_map<HttpConnection*, Worker*> owners_ ABSL_GUARDED_BY(mutex_);
  int64_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  SteadyCondVar closed_one_;  // with mutex_: a connection has ended
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options,
                                                               HttpConnection::Hooks hooks) {
  auto server = std::make_unique<HttpServerImpl>(options, std::move(hooks));
  RETURN_IF_ERROR(server->Bind());
  return server;
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              HttpConnection::Hooks hooks) {
  ASSIGN_OR_RETURN(std::unique_ptr<HttpServer> server, Listen(options, std::move(hooks)));
  server->Run();
  return server;
}

absl::StatusOr<std::string> ParseHttpAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string host = colon == std::string::npos ? "" : text.substr(0, colon);
  const std::string port = colon == std::string::npos ? text : text.substr(colon + 1);
  int number = -1;
  if (!absl::SimpleAtoi(port, &number) || number < 0 || number > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "http: \"", text, "\", expected a port or host:port, with a port from 0 to 65535"));
  }
  return absl::StrCat(host.empty() ? "127.0.0.1" : host, ":", number);
}

}  // namespace tandem::router
