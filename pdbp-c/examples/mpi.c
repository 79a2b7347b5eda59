/* A program that calls MPI itself, and lets a cluster run on a communicator of its own: mpicc mpi.c $(pkg-config --cflags --libs pdbp),
 * then mpirun -n 2 ./a.out. Each rank sends its number to the next. */
#include "check.h"

#include <pdbp_mpi.h>

int main(int argc, char **argv) {
    pdbp_cluster *cluster;
    pdbp_node *node;
    pdbp_part *part;
    pdbp_target next;
    pdbp_message message;
    MPI_Comm comm;
    char name[32];
    int given, rank, size, sum = 0;

    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &given);
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);

    CHECK(pdbp_start_on(NULL, comm, &cluster));
    CHECK(pdbp_cluster_node(cluster, (uint16_t)rank, &node));
    CHECK(pdbp_register(node, "counter", PDBP_CPU, &part));
    snprintf(name, sizeof name, "counter@node%d", (rank + 1) % size);
    CHECK(pdbp_find(node, name, PDBP_SET_TIMEOUT, &next));
    CHECK(pdbp_send(part, next, &rank, sizeof rank, PDBP_SET_TIMEOUT));
    CHECK(pdbp_recv(part, &message, PDBP_SET_TIMEOUT));
    MPI_Allreduce(message.data, &sum, 1, MPI_INT, MPI_SUM, comm); /* the program's own calls go on as before */
    pdbp_release(&message, 1);
    if (rank == 0) printf("%d nodes, sum %d\n", pdbp_cluster_size(cluster), sum);

    pdbp_part_free(part);
    pdbp_node_free(node);
    pdbp_cluster_free(cluster); /* before MPI ends */
    MPI_Comm_free(&comm);
    MPI_Finalize();
    return 0;
}
