// SPDX-License-Identifier: Apache-2.0

package devserver

import (
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// kubeconfig returns a kubeconfig file for the client of the credentials. The
// file holds the client's key.
func (c *credentials) kubeconfig(server string) ([]byte, error) {
	const name = "devserver"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.ca}
	config.AuthInfos[clientUser] = &clientcmdapi.AuthInfo{ClientCertificateData: c.clientCert, ClientKeyData: c.clientKey}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: clientUser, Namespace: "default"}
	config.CurrentContext = name
	return clientcmd.Write(*config)
}
