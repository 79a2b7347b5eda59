// Two nodes, each on a thread of its own, greet each other, and add what they have.
#include <pdbp.hpp>

#include <iostream>
#include <thread>

static void run(pdbp::node node) {
    pdbp::part part(node, "greeter");
    const pdbp::target peer = node.find(node.index() == 0 ? "greeter@node1" : "greeter@node0");
    part.send(peer, "hello from node" + std::to_string(node.index()));
    const pdbp::message message = part.recv(); // read where it arrived
    std::cout << "node" + std::to_string(node.index()) + " got \"" + std::string(message.text()) + "\"\n";

    pdbp::group all = node.group("sums");
    std::vector<double> values(1000, all.rank() + 1.0);
    all.all_reduce(values); // in place, by pdbp::op::sum
    if (all.rank() == 0) std::cout << "each sum is " << values.front() << '\n';
    node.barrier();
}

int main() {
    try {
        pdbp::cluster cluster(pdbp::settings().set("nodes", "2"));
        std::vector<std::thread> threads;
        for (pdbp::node &node : cluster.nodes()) threads.emplace_back(run, std::move(node));
        for (std::thread &thread : threads) thread.join();
    } catch (const pdbp::error &error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
