// A plain event loop with the engine's semantics, one event a task: what benchmarks/engine.py compares with.
//
// Reads from stdin  servers gpus_per_server gpu_memory_bytes latency_s per_byte_s penalty_per_byte_s overlap_limit
//                   (0 for AdaDUAL), the number of jobs, and a line a job:
//                   arrival_ns gpus iterations forward_ns backward_ns message_bytes memory_bytes
// Writes to stdout  JSON: seconds of the loop, events, peak memory, and the finish time of each job.
// Placement is LWF-1, the order SRSF, contention linear on a star; durations are greater than 0.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <limits>
#include <queue>
#include <string>
#include <utility>
#include <vector>

using Ns = std::int64_t;
constexpr Ns never = std::numeric_limits<Ns>::max();

struct Setting {
    int num_servers, gpus_per_server;
    std::int64_t gpu_memory;
    double latency_s, per_byte_s, penalty_per_byte_s;
    int overlap_limit;
};

struct Job {
    Ns arrival, forward, backward;
    std::int64_t num_gpus, iterations, memory;
    double message;

    Ns remaining_service = 0, finish = -1;
    std::int64_t iterations_left = 0, backwards_left = 0;
    std::vector<int> workers, servers;
    Ns communication_load = 0;  // of one iteration, on each GPU

    // The all-reduce: bytes and latency left are those of `since`, when the rate last changed.
    double bytes_left = 0, latency_left = 0, rate = 0, ns_per_byte = 0;
    Ns since = 0;
    int version = 0;
};

enum class Task { none, forward, backward };

struct Worker {
    int job, gpu;
    Task ready = Task::none, running = Task::none;
    Ns done = 0;
};

struct Gpu {
    std::int64_t free_memory;
    bool busy = false, touched = false;
    std::vector<int> residents = {};  // workers
};

// The end of a worker's task, or (item = -1 - job) of a job's all-reduce; void if the version is an old one.
struct Event {
    Ns end;
    int item, version;
    bool operator>(const Event& other) const { return end > other.end; }
};

class Simulation {
public:
    std::vector<Job> jobs;
    std::int64_t events = 0;

    Simulation(const Setting& setting, std::vector<Job> workload)
        : jobs(std::move(workload)), setting(setting),
          gpus(setting.num_servers * setting.gpus_per_server, Gpu{setting.gpu_memory}),
          transfers_on(setting.num_servers) {
        for (int j = 0; j < static_cast<int>(jobs.size()); ++j) {
            Job& job = jobs[j];
            job.iterations_left = job.iterations;
            job.remaining_service = (job.forward + job.backward) * job.iterations * job.num_gpus;
            arrivals.push_back(j);
        }
        std::stable_sort(arrivals.begin(), arrivals.end(),
                         [this](int a, int b) { return jobs[a].arrival < jobs[b].arrival; });
    }

    void run() {
        while ((now = next_instant()) != never) {
            end_tasks_and_transfers();  // steps 1 and 2
            take_in_arrivals();
            if (jobs_changed) place_queue();  // step 3
            if (transfers_changed) admit_transfers();  // step 4
            if (rates_changed) change_rates();
            fill_idle_gpus();  // step 5
        }
    }

private:
    Setting setting;
    std::vector<Gpu> gpus;
    std::vector<std::vector<int>> transfers_on;  // jobs whose all-reduce runs, by server
    std::vector<Worker> workers;
    std::vector<int> arrivals, queue, waiting, active, touched_gpus;
    std::size_t next_arrival = 0;
    std::priority_queue<Event, std::vector<Event>, std::greater<Event>> ends;
    Ns now = 0;
    bool jobs_changed = false, transfers_changed = false, rates_changed = false;

    bool goes_before(int a, int b) const {
        return std::pair(jobs[a].remaining_service, a) < std::pair(jobs[b].remaining_service, b);
    }

    static Ns rounded_ns(double seconds) { return std::llrint(seconds * 1e9); }

    bool is_void(const Event& event) const { return event.item < 0 && jobs[-1 - event.item].version != event.version; }

    Ns next_instant() {
        while (!ends.empty() && is_void(ends.top())) ends.pop();
        Ns instant = ends.empty() ? never : ends.top().end;
        if (next_arrival < arrivals.size()) instant = std::min(instant, jobs[arrivals[next_arrival]].arrival);
        return instant;
    }

    // Steps 1 and 2

    void end_tasks_and_transfers() {
        while (!ends.empty() && ends.top().end == now) {
            const Event event = ends.top();
            ends.pop();
            if (is_void(event)) continue;
            ++events;
            if (event.item >= 0)
                end_task(event.item);
            else
                end_transfer(-1 - event.item);
        }
    }

    void end_task(int w) {
        Worker& worker = workers[w];
        Job& job = jobs[worker.job];
        const Task ended = worker.running;
        const Ns duration = ended == Task::forward ? job.forward : job.backward;
        worker.running = Task::none;
        worker.done += duration;
        job.remaining_service -= duration;
        gpus[worker.gpu].busy = false;
        touch(worker.gpu);
        if (ended == Task::forward)
            worker.ready = Task::backward;
        else if (--job.backwards_left == 0)
            all_reduce(worker.job);
    }

    void all_reduce(int j) {
        Job& job = jobs[j];
        if (job.servers.size() == 1) {
            end_iteration(j);
            return;
        }
        job.bytes_left = job.message;
        job.latency_left = setting.latency_s * 1e9;
        job.rate = 0;
        waiting.push_back(j);
        transfers_changed = true;
    }

    void end_transfer(int j) {
        Job& job = jobs[j];
        ++job.version;
        remove(active, j);
        for (int server : job.servers) remove(transfers_on[server], j);
        transfers_changed = rates_changed = true;
        end_iteration(j);
    }

    void end_iteration(int j) {
        Job& job = jobs[j];
        if (--job.iterations_left > 0) {
            start_iteration(job);
            return;
        }
        job.finish = now;
        for (int w : job.workers) {
            Gpu& gpu = gpus[workers[w].gpu];
            gpu.free_memory += job.memory;
            remove(gpu.residents, w);
        }
        jobs_changed = true;
    }

    void start_iteration(Job& job) {
        job.backwards_left = job.num_gpus;
        for (int w : job.workers) {
            workers[w].ready = Task::forward;
            touch(workers[w].gpu);
        }
    }

    void touch(int gpu) {
        if (gpus[gpu].touched) return;
        gpus[gpu].touched = true;
        touched_gpus.push_back(gpu);
    }

    static void remove(std::vector<int>& items, int item) {
        *std::find(items.begin(), items.end(), item) = items.back();
        items.pop_back();
    }

    void take_in_arrivals() {
        for (; next_arrival < arrivals.size() && jobs[arrivals[next_arrival]].arrival == now; ++next_arrival) {
            queue.push_back(arrivals[next_arrival]);
            jobs_changed = true;
        }
    }

    // Step 3

    void place_queue() {
        jobs_changed = false;
        std::sort(queue.begin(), queue.end(), [this](int a, int b) { return goes_before(a, b); });
        std::vector<int> kept;
        for (int j : queue) {
            const std::vector<int> chosen = least_workload_first(jobs[j]);
            if (static_cast<std::int64_t>(chosen.size()) == jobs[j].num_gpus)
                place(j, chosen);
            else
                kept.push_back(j);
        }
        queue = std::move(kept);
    }

    Ns load(const Gpu& gpu) const {
        Ns sum = 0;
        for (int w : gpu.residents) {
            const Job& job = jobs[workers[w].job];
            sum += (job.forward + job.backward) * job.iterations - workers[w].done;
            sum += job.communication_load * job.iterations_left;
        }
        return sum;
    }

    std::vector<int> least_workload_first(const Job& job) const {
        std::vector<int> chosen;
        for (std::size_t g = 0; g < gpus.size(); ++g)
            if (gpus[g].free_memory >= job.memory) chosen.push_back(static_cast<int>(g));
        if (static_cast<std::int64_t>(chosen.size()) < job.num_gpus) return {};
        std::vector<Ns> loads(gpus.size()), server_loads(setting.num_servers, 0);  // sums order as means do
        for (std::size_t g = 0; g < gpus.size(); ++g) {
            loads[g] = load(gpus[g]);
            server_loads[server_of(g)] += loads[g];
        }
        std::sort(chosen.begin(), chosen.end(), [&](int a, int b) {
            const int p = server_of(a), q = server_of(b);
            if (job.num_gpus > 1 && p != q) return std::pair(server_loads[p], p) < std::pair(server_loads[q], q);
            return std::pair(loads[a], a) < std::pair(loads[b], b);
        });
        chosen.resize(job.num_gpus);
        return chosen;
    }

    int server_of(std::size_t gpu) const { return static_cast<int>(gpu) / setting.gpus_per_server; }

    void place(int j, const std::vector<int>& chosen) {
        Job& job = jobs[j];
        for (int g : chosen) {
            const int w = static_cast<int>(workers.size());
            workers.push_back(Worker{j, g});
            job.workers.push_back(w);
            gpus[g].free_memory -= job.memory;
            gpus[g].residents.push_back(w);
            const int server = server_of(g);
            if (std::find(job.servers.begin(), job.servers.end(), server) == job.servers.end())
                job.servers.push_back(server);
        }
        if (job.servers.size() > 1) job.communication_load = rounded_ns(setting.per_byte_s * job.message);
        start_iteration(job);
    }

    // Step 4

    void admit_transfers() {
        transfers_changed = false;
        std::sort(waiting.begin(), waiting.end(), [this](int a, int b) { return goes_before(a, b); });
        std::size_t kept = 0;
        for (int j : waiting) {
            if (admits(jobs[j]))
                start_transfer(j);
            else
                waiting[kept++] = j;
        }
        waiting.resize(kept);
    }

    int most_on_servers_of(const Job& job) const {
        std::size_t most = 0;
        for (int server : job.servers) most = std::max(most, transfers_on[server].size());
        return static_cast<int>(most);
    }

    bool admits(const Job& job) const {
        const int most = most_on_servers_of(job);
        if (setting.overlap_limit > 0) return most < setting.overlap_limit;
        if (most != 1) return most == 0;
        const double cost = job.message * 2.0 * (setting.per_byte_s + setting.penalty_per_byte_s);
        for (int server : job.servers)
            for (int other : transfers_on[server])
                if (cost > bytes_left(jobs[other]) * setting.per_byte_s * (1 + 1e-9)) return false;
        return true;
    }

    void start_transfer(int j) {
        jobs[j].since = now;
        active.push_back(j);
        for (int server : jobs[j].servers) transfers_on[server].push_back(j);
        rates_changed = true;
    }

    double bytes_left(const Job& job) const {
        if (job.rate == 0) return job.bytes_left;
        const double sending = now - job.since - job.latency_left;
        return sending <= 0 ? job.bytes_left : std::max(job.bytes_left - sending / job.ns_per_byte, 0.0);
    }

    void change_rates() {
        rates_changed = false;
        for (int j : active) {
            const int most = most_on_servers_of(jobs[j]);
            const double rate = 1.0 / (most * setting.per_byte_s + (most - 1) * setting.penalty_per_byte_s);
            if (rate != jobs[j].rate) change_rate(j, rate);
        }
    }

    void change_rate(int j, double rate) {
        Job& job = jobs[j];
        job.bytes_left = bytes_left(job);
        if (job.rate > 0) job.latency_left = std::max(job.latency_left - (now - job.since), 0.0);
        job.since = now;
        job.rate = rate;
        job.ns_per_byte = 1e9 / rate;
        const Ns after = static_cast<Ns>(std::ceil(job.latency_left + job.bytes_left * job.ns_per_byte - 0.001));
        ends.push({now + std::max<Ns>(after, 0), -1 - j, ++job.version});
    }

    // Step 5

    void fill_idle_gpus() {
        for (int g : touched_gpus) {
            gpus[g].touched = false;
            if (gpus[g].busy) continue;
            int best = -1;
            for (int w : gpus[g].residents)
                if (workers[w].ready != Task::none && (best < 0 || goes_before(workers[w].job, workers[best].job)))
                    best = w;
            if (best >= 0) start_task(best);
        }
        touched_gpus.clear();
    }

    void start_task(int w) {
        Worker& worker = workers[w];
        const Job& job = jobs[worker.job];
        worker.running = std::exchange(worker.ready, Task::none);
        gpus[worker.gpu].busy = true;
        ends.push({now + (worker.running == Task::forward ? job.forward : job.backward), w, 0});
    }
};

// The peak resident memory of this process, MB, as Linux counts it; 0 elsewhere.
double peak_mb() {
    std::ifstream status("/proc/self/status");
    for (std::string word; status >> word;)
        if (word == "VmHWM:") {
            double kib;
            status >> kib;
            return kib * 1024 / 1e6;
        }
    return 0;
}

int main() {
    Setting s;
    std::size_t num_jobs;
    std::cin >> s.num_servers >> s.gpus_per_server >> s.gpu_memory >> s.latency_s >> s.per_byte_s >>
        s.penalty_per_byte_s >> s.overlap_limit >> num_jobs;
    std::vector<Job> workload(num_jobs);
    for (Job& job : workload)
        std::cin >> job.arrival >> job.num_gpus >> job.iterations >> job.forward >> job.backward >> job.message >>
            job.memory;
    if (!std::cin) {
        std::fprintf(stderr, "event_loop: the input is not of the form that event_loop.cpp states\n");
        return 2;
    }
    Simulation simulation(s, std::move(workload));
    const auto begin = std::chrono::steady_clock::now();
    simulation.run();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::printf("{\"seconds\": %.9f, \"events\": %lld, \"peak_mb\": %.3f, \"finish_ns\": [", seconds.count(),
                static_cast<long long>(simulation.events), peak_mb());
    for (std::size_t j = 0; j < num_jobs; ++j)
        std::printf("%s%lld", j ? ", " : "", static_cast<long long>(simulation.jobs[j].finish));
    std::printf("]}\n");
}
